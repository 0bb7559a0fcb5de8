#include "tensor/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <exception>

#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

constexpr std::string_view kPrefix = "torch.";

template <class T>
using NameTable = std::pair<T, std::string_view>;

constexpr std::array<NameTable<at::Layout>, 8> kLayouts{{{at::kStrided, "strided"},
                                                         {at::kSparse, "sparse_coo"},
                                                         {at::kSparseCsr, "sparse_csr"},
                                                         {at::kSparseCsc, "sparse_csc"},
                                                         {at::kSparseBsr, "sparse_bsr"},
                                                         {at::kSparseBsc, "sparse_bsc"},
                                                         {at::kMkldnn, "_mkldnn"},
                                                         {at::kJagged, "jagged"}}};
constexpr std::array<NameTable<at::MemoryFormat>, 4> kMemoryFormats{
    {{at::MemoryFormat::Contiguous, "contiguous_format"},
     {at::MemoryFormat::Preserve, "preserve_format"},
     {at::MemoryFormat::ChannelsLast, "channels_last"},
     {at::MemoryFormat::ChannelsLast3d, "channels_last_3d"}}};
constexpr std::array<NameTable<at::QScheme>, 5> kQSchemes{
    {{at::kPerTensorAffine, "per_tensor_affine"},
     {at::kPerChannelAffine, "per_channel_affine"},
     {at::kPerTensorSymmetric, "per_tensor_symmetric"},
     {at::kPerChannelSymmetric, "per_channel_symmetric"},
     {at::kPerChannelAffineFloatQParams, "per_channel_affine_float_qparams"}}};

template <class T, size_t N>
std::string name_in(const std::array<NameTable<T>, N>& table, T value) {
  const auto match =
      std::find_if(table.begin(), table.end(), [value](const auto& entry) { return entry.first == value; });
  // A value that a newer torch has and this build does not know still needs a name for messages.
  std::string name(kPrefix);
  name += match == table.end() ? "unknown" : match->second;
  return name;
}

std::string_view without_prefix(std::string_view name) {
  return name.substr(0, kPrefix.size()) == kPrefix ? name.substr(kPrefix.size()) : name;
}

template <class T, size_t N>
std::optional<T> value_in(const std::array<NameTable<T>, N>& table, std::string_view name) {
  const auto match = std::find_if(table.begin(), table.end(),
                                  [name = without_prefix(name)](const auto& entry) { return entry.second == name; });
  return match == table.end() ? std::nullopt : std::optional<T>(match->first);
}

// The children that for_each_tensor and map_tensors follow: sequences, and slices, whose parts may
// be tensors.
const std::shared_ptr<const Values>* shared_items(const Value& value) {
  if (const auto* list = value.get_if<List>()) return &list->items;
  if (const auto* tuple = value.get_if<Tuple>()) return &tuple->items;
  if (const auto* named = value.get_if<NamedTuple>()) return &named->items;
  if (const auto* set = value.get_if<Set>()) return &set->items;
  if (const auto* slice = value.get_if<Slice>()) return &slice->items;
  return nullptr;
}

Value with_items(const Value& original, std::shared_ptr<const Values> items) {
  if (original.is<List>()) return List{std::move(items)};
  if (original.is<Set>()) return Set{std::move(items)};
  if (original.is<Slice>()) return Slice{std::move(items)};
  if (const auto* named = original.get_if<NamedTuple>()) return NamedTuple{std::move(items), named->type};
  return Tuple{std::move(items)};
}

using Visitor = std::function<Value(const at::Tensor&)>;

// The items with those replaced for which `change` has something; nullptr when it has nothing for any.
template <class Item, class Change>
std::shared_ptr<std::vector<Item>> changed_items(const std::vector<Item>& items, Change&& change) {
  std::shared_ptr<std::vector<Item>> copy;
  for (size_t i = 0; i < items.size(); ++i) {
    std::optional<Item> changed = change(items[i]);
    if (changed && !copy) {
      copy = std::make_shared<std::vector<Item>>();
      copy->reserve(items.size());
      copy->insert(copy->end(), items.begin(), items.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (copy) copy->push_back(changed ? std::move(*changed) : items[i]);
  }
  return copy;
}

// The mapped tree, or nothing when no tensor is in it: the caller then shares the original.
std::optional<Value> map_changed(const Value& value, const Visitor& visit) {
  if (const auto* tensor = value.get_if<at::Tensor>()) return visit(*tensor);
  if (const auto* items = shared_items(value)) {
    auto copy = changed_items(**items, [&](const Value& item) { return map_changed(item, visit); });
    if (!copy) return std::nullopt;
    return with_items(value, std::move(copy));
  }
  if (const auto* dict = value.get_if<Dict>()) {
    using Item = std::pair<Value, Value>;
    auto copy = changed_items(*dict->items, [&](const Item& item) -> std::optional<Item> {
      auto changed = map_changed(item.second, visit);
      if (!changed) return std::nullopt;
      return Item(item.first, std::move(*changed));
    });
    if (!copy) return std::nullopt;
    return Dict{std::move(copy)};
  }
  return std::nullopt;
}

// Writes the line of describe(). Sequences, strings and depth are cut, so that a line stays
// readable whatever the program passes.
class Describer {
 public:
  std::string take() { return std::move(out_); }

  void append(const Value& value) {
    if (depth_ >= kMaxDepth) {
      out_ += "...";
      return;
    }
    ++depth_;
    std::visit([this](const auto& alternative) { add(alternative); }, value.variant());
    --depth_;
  }

 private:
  static constexpr size_t kMaxItems = 32;
  static constexpr size_t kMaxText = 200;
  static constexpr int kMaxDepth = 16;

  void add(const None&) { out_ += "None"; }
  void add(bool value) { out_ += value ? "True" : "False"; }
  void add(int64_t value) { out_ += std::to_string(value); }
  void add(const Ellipsis&) { out_ += "..."; }
  void add(at::ScalarType dtype) { out_ += torch_name(dtype); }
  void add(at::Layout layout) { out_ += torch_name(layout); }
  void add(at::MemoryFormat format) { out_ += torch_name(format); }
  void add(at::QScheme scheme) { out_ += torch_name(scheme); }
  void add(const c10::Device& device) { out_ += "device('" + device.str() + "')"; }
  void add(const Size& size) { add_size(size.sizes); }
  void add(const List& list) { add_items("[", *list.items, "]"); }
  void add(const Set& set) { add_items("{", *set.items, "}"); }
  void add(const Slice& slice) { add_items("slice(", *slice.items, ")"); }
  void add(const Tuple& tuple) { add_tuple(*tuple.items); }
  void add(const NamedTuple& named) {
    out_ += named.type;
    add_tuple(*named.items);
  }
  void add(const Bytes& bytes) { out_ += "<" + std::to_string(bytes.bytes.size()) + " bytes>"; }
  void add(const Generator& generator) { out_ += "Generator(device='" + generator.device.str() + "')"; }
  void add(const Unsupported& unsupported) { out_ += "<" + unsupported.type + ": " + unsupported.why + ">"; }

  void add(double value) {
    if (std::isnan(value)) {
      out_ += "nan";
      return;
    }
    if (std::isinf(value)) {
      out_ += value < 0 ? "-inf" : "inf";
      return;
    }
    // The shortest text that reads back as the same number, with the exponent rule of Python's
    // repr.
    const double magnitude = std::fabs(value);
    const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
    std::array<char, 64> buffer;
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                   fixed ? std::chars_format::fixed : std::chars_format::scientific);
    const std::string_view text(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
    out_ += text;
    if (fixed && text.find('.') == std::string_view::npos) out_ += ".0";
  }

  void add(const c10::complex<double>& value) {
    out_ += "complex(";
    add(value.real());
    out_ += ", ";
    add(value.imag());
    out_ += ")";
  }

  void add(const std::string& text) {
    out_ += '\'';
    for (const char c : std::string_view(text).substr(0, kMaxText)) {
      if (c == '\n') {
        out_ += "\\n";
      } else if (static_cast<unsigned char>(c) >= 0x20) {
        out_ += c;
      } else {
        out_ += '?';  // a message is a single line and moves no cursor
      }
    }
    if (text.size() > kMaxText) out_ += "...";
    out_ += '\'';
  }

  void add(const Dict& dict) {
    out_ += '{';
    size_t count = 0;
    for (const auto& [key, value] : *dict.items) {
      if (count > 0) out_ += ", ";
      if (count++ == kMaxItems) {
        add_rest(dict.items->size());
        break;
      }
      append(key);
      out_ += ": ";
      append(value);
    }
    out_ += '}';
  }

  void add(const at::Tensor& tensor) {
    out_ += '{';
    add_field("'shape': ", [&] { add_size(own_sizes(tensor)); });
    if (tensor.layout() == at::kStrided) {
      add_field("'stride': ", [&] { add_ints(own_strides(tensor)); });
    }
    add_field("'numel': ", [&] { out_ += std::to_string(c10::multiply_integers(own_sizes(tensor))); });
    add_field("'dtype': ", [&] { out_ += '\'' + torch_name(tensor.scalar_type()) + '\''; });
    add_field("'device': ", [&] { out_ += '\'' + tensor.device().str() + '\''; });
    add_field("'requires_grad': ", [&] { add(tensor.requires_grad()); });
    add_field("'layout': ", [&] { out_ += '\'' + torch_name(tensor.layout()) + '\''; });
    if (tensor.layout() == at::kStrided) {
      add_field("'data': ", [&] { out_ += std::to_string(reinterpret_cast<uintptr_t>(tensor.const_data_ptr())); });
    }
    out_ += '}';
  }

  // Nested, symbolic and fake tensors throw when asked for a shape or a pointer: a line about them
  // still gets written.
  template <class Write>
  void add_field(std::string_view key, const Write& write) {
    if (out_.back() != '{') out_ += ", ";
    out_ += key;
    const size_t before = out_.size();
    try {
      write();
    } catch (const std::exception&) {
      out_.resize(before);
      out_ += "None";
    }
  }

  void add_ints(at::IntArrayRef numbers) {
    out_ += '(';
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (i > 0) out_ += ", ";
      out_ += std::to_string(numbers[i]);
    }
    out_ += numbers.size() == 1 ? ",)" : ")";
  }

  void add_size(at::IntArrayRef sizes) {
    out_ += "torch.Size([";
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i > 0) out_ += ", ";
      out_ += std::to_string(sizes[i]);
    }
    out_ += "])";
  }

  void add_tuple(const Values& items) { add_items("(", items, items.size() == 1 ? ",)" : ")"); }

  void add_items(std::string_view open, const Values& items, std::string_view close) {
    out_ += open;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += ", ";
      if (i == kMaxItems) {
        add_rest(items.size());
        break;
      }
      append(items[i]);
    }
    out_ += close;
  }

  void add_rest(size_t total) { out_ += "... (" + std::to_string(total) + " in all)"; }

  std::string out_;
  int depth_ = 0;
};

}  // namespace

Value make_list(Values items) {
  return List{std::make_shared<const Values>(std::move(items))};
}

Value make_tuple(Values items) {
  return Tuple{std::make_shared<const Values>(std::move(items))};
}

Value make_dict(std::vector<std::pair<Value, Value>> items) {
  return Dict{std::make_shared<const std::vector<std::pair<Value, Value>>>(std::move(items))};
}

const Values* sequence_items(const Value& value) {
  if (value.is<Slice>()) return nullptr;
  const auto* items = shared_items(value);
  return items == nullptr ? nullptr : items->get();
}

const Value* find_key(const Value& dict, std::string_view key) {
  const auto* items = dict.get_if<Dict>();
  if (items == nullptr) return nullptr;
  for (const auto& [name, value] : *items->items) {
    const auto* text = name.get_if<std::string>();
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

void for_each_tensor(const Value& value, const std::function<void(const at::Tensor&)>& visit) {
  if (const auto* tensor = value.get_if<at::Tensor>()) {
    visit(*tensor);
  } else if (const auto* items = shared_items(value)) {
    for (const auto& item : **items) for_each_tensor(item, visit);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& item : *dict->items) for_each_tensor(item.second, visit);
  }
}

std::vector<at::Tensor> flatten_tensors(const Value& value) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(8);  // most calls have fewer
  for_each_tensor(value, [&tensors](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

Value map_tensors(const Value& value, const std::function<Value(const at::Tensor&)>& visit) {
  auto changed = map_changed(value, visit);
  return changed ? *changed : value;
}

const Unsupported* first_unsupported(const Value& value) {
  if (const auto* unsupported = value.get_if<Unsupported>()) return unsupported;
  if (const auto* items = shared_items(value)) {
    for (const auto& item : **items) {
      if (const Unsupported* unsupported = first_unsupported(item)) return unsupported;
    }
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) {
      if (const Unsupported* unsupported = first_unsupported(key)) return unsupported;
      if (const Unsupported* unsupported = first_unsupported(item)) return unsupported;
    }
  }
  return nullptr;
}

std::string torch_name(at::ScalarType dtype) {
  std::string name(kPrefix);
  // getDtypeNames throws for values that are no dtype in Python.
  const bool known = dtype != at::ScalarType::Undefined && dtype < at::ScalarType::NumOptions;
  name += known ? c10::getDtypeNames(dtype).first : std::string_view("unknown");
  return name;
}
std::string torch_name(at::Layout layout) {
  return name_in(kLayouts, layout);
}
std::string torch_name(at::MemoryFormat format) {
  return name_in(kMemoryFormats, format);
}
std::string torch_name(at::QScheme scheme) {
  return name_in(kQSchemes, scheme);
}

std::optional<at::ScalarType> dtype_from_name(std::string_view name) {
  const auto& dtypes = c10::getStringToDtypeMap();
  const auto entry = dtypes.find(std::string(without_prefix(name)));
  return entry == dtypes.end() ? std::nullopt : std::optional(entry->second);
}
std::optional<at::Layout> layout_from_name(std::string_view name) {
  return value_in(kLayouts, name);
}
std::optional<at::MemoryFormat> memory_format_from_name(std::string_view name) {
  return value_in(kMemoryFormats, name);
}
std::optional<at::QScheme> qscheme_from_name(std::string_view name) {
  return value_in(kQSchemes, name);
}

std::string describe(const Value& value) {
  Describer describer;
  describer.append(value);
  return describer.take();
}

}  // namespace op_tools
