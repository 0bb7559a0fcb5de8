#include "pth/pickle_globals.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/detach_ops.h>

#include <cstdint>
#include <optional>

#include "base/error.h"
#include "pth/pth.h"
#include "pth/pth_tensors.h"
#include "tensor/value.h"

namespace op_tools::pickled {
namespace {

void require_count(const std::string& name, const std::vector<Item>& args, size_t least, size_t most) {
  if (args.size() < least || args.size() > most)
    throw Error("data.pkl calls '" + name + "' with " + std::to_string(args.size()) + " arguments");
}

void set_metadata(const at::Tensor& tensor, const Item& metadata) {
  if (!metadata.node && metadata.value.is<None>()) return;
  const auto& items = node_of(metadata, Kind::kDict, "a dict of tensor bits").items;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const std::string& bit = text_of(items[i]);
    if (bit == "conj") {
      if (as<bool>(items[i + 1], "a bit")) set_conj(tensor);
    } else if (bit == "neg") {
      tensor._set_neg(as<bool>(items[i + 1], "a bit"));
    }
  }
}

// args: storage, offset, size, stride, requires_grad, hooks, ...
at::Tensor rebuild_tensor(const Node& storage, at::ScalarType dtype, const std::vector<Item>& args,
                          const Item* metadata) {
  const bool requires_grad = as<bool>(args[4], "requires_grad");
  const auto tensor = dense_tensor(storage.storage, dtype, int_of(args[1]), ints_of(args[2]), ints_of(args[3]));
  if (metadata != nullptr) set_metadata(tensor, *metadata);
  if (requires_grad) require_grad(tensor);
  return tensor;
}

at::Tensor rebuild_parameter(const at::Tensor& data, bool requires_grad) {
  // Another tensor on the same memory, as in Python: `data` itself may be in the tree, too.
  at::Tensor parameter = at::_ops::detach::call(data);
  if (requires_grad) require_grad(parameter);
  return parameter;
}

at::Tensor rebuild_sparse(at::Layout layout, const std::vector<Item>& args) {
  if (layout == at::kSparse) {
    require_count("_rebuild_sparse_tensor", args, 3, 4);
    std::optional<bool> coalesced;
    if (args.size() == 4) coalesced = as<bool>(args[3], "is_coalesced");
    return sparse_coo_tensor(tensor_of(args[0]), tensor_of(args[1]), ints_of(args[2]), coalesced);
  }
  if (layout != at::kSparseCsr && layout != at::kSparseCsc && layout != at::kSparseBsr && layout != at::kSparseBsc)
    throw Error("a tensor of layout " + torch_name(layout) + " is not supported");
  require_count("_rebuild_sparse_tensor", args, 4, 4);
  return sparse_compressed_tensor(layout, tensor_of(args[0]), tensor_of(args[1]), tensor_of(args[2]), ints_of(args[3]));
}

std::string latin1_bytes(const std::string& text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes += text[i];
    } else if ((lead == 0xC2 || lead == 0xC3) && i + 1 < text.size()) {
      bytes += static_cast<char>((lead & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F));
    } else {
      throw Error("data.pkl holds bytes that are no latin-1 text");
    }
  }
  return bytes;
}

Value make_plain(const std::string& name, const std::vector<Item>& args) {
  if (name == "torch.Size") {
    require_count(name, args, 1, 1);
    return Size{ints_of(args[0])};
  }
  if (name == "torch.device") {
    require_count(name, args, 1, 2);
    const std::string index = args.size() == 2 ? ":" + std::to_string(int_of(args[1])) : "";
    return recorded_device(text_of(args[0]) + index);
  }
  if (name == "torch.serialization._get_layout") {
    require_count(name, args, 1, 1);
    const auto layout = layout_from_name(text_of(args[0]));
    if (!layout) throw Error("holds the unknown layout '" + text_of(args[0]) + "'");
    return *layout;
  }
  if (name == "builtins.complex") {
    require_count(name, args, 2, 2);
    return c10::complex<double>(as<double>(args[0], "a float"), as<double>(args[1], "a float"));
  }
  if (name == "_codecs.encode" || name == "builtins.bytearray" || name == "builtins.bytes") {
    require_count(name, args, 0, 2);
    if (args.empty()) return Bytes{};
    if (!args[0].node && args[0].value.is<Bytes>()) return args[0].value;
    return Bytes{latin1_bytes(text_of(args[0]))};
  }
  refuse_global(name);
}

Item make_ordered_dict(const std::vector<Item>& args) {
  Item dict = new_node(Kind::kDict);
  if (args.empty()) return dict;
  for (const auto& pair : node_of(args[0], Kind::kList, "a list of pairs").items) {
    const Node* node = pair.node.get();
    if (node == nullptr || (node->kind != Kind::kTuple && node->kind != Kind::kList) || node->items.size() != 2)
      throw Error("data.pkl has something else where a pair must be");
    for (const auto& item : node->items) adopt(*dict.node, item);
  }
  return dict;
}

// Undefined: untyped.
std::optional<at::ScalarType> dtype_of_storage(std::string_view global) {
  constexpr std::string_view kTorch = "torch.";
  if (global == "torch.storage.UntypedStorage") return at::ScalarType::Undefined;
  return global.starts_with(kTorch) ? dtype_of_typed_storage(global.substr(kTorch.size())) : std::nullopt;
}

}  // namespace

void refuse_global(const std::string& name) {
  throw Error("holds the Python object '" + name + "': only tensors and plain values are read");
}

Item global_named(std::string_view module, std::string_view name) {
  if (module == "__builtin__") module = "builtins";
  if (module == "torch") {
    if (const auto dtype = dtype_from_name(name)) return {*dtype, nullptr};
    if (const auto scheme = qscheme_from_name(name)) return {*scheme, nullptr};
  }
  if (module == "torch" || module == "torch._utils")
    if (const auto format = memory_format_from_name(name)) return {*format, nullptr};
  if (module == "builtins" && name == "Ellipsis") return {Ellipsis{}, nullptr};
  return new_node(Kind::kGlobal, std::string(module) + "." + std::string(name));
}

Item call(const std::string& name, const std::vector<Item>& args) {
  if (name == "torch._utils._rebuild_tensor_v2") {
    require_count(name, args, 6, 7);
    const Node& storage = node_of(args[0], Kind::kStorage, "a storage");
    return {rebuild_tensor(storage, storage.dtype, args, args.size() > 6 ? &args[6] : nullptr), nullptr};
  }
  if (name == "torch._utils._rebuild_tensor_v3") {
    require_count(name, args, 7, 8);
    const Node& storage = node_of(args[0], Kind::kStorage, "a storage");
    const auto dtype = as<at::ScalarType>(args[6], "a dtype");
    return {rebuild_tensor(storage, dtype, args, args.size() > 7 ? &args[7] : nullptr), nullptr};
  }
  if (name == "torch._utils._rebuild_parameter" || name == "torch._utils._rebuild_parameter_with_state") {
    require_count(name, args, 3, 4);
    return {rebuild_parameter(tensor_of(args[0]), as<bool>(args[1], "requires_grad")), nullptr};
  }
  if (name == "torch._tensor._rebuild_from_type_v2") {
    // A subclass of Tensor, or a tensor with attributes: only the tensor counts.
    require_count(name, args, 4, 4);
    return call(node_of(args[0], Kind::kGlobal, "a function").name, arguments_of(args[2]));
  }
  if (name == "torch._utils._rebuild_sparse_tensor") {
    require_count(name, args, 2, 2);
    return {rebuild_sparse(as<at::Layout>(args[0], "a layout"), arguments_of(args[1])), nullptr};
  }
  if (name == "collections.OrderedDict") {
    require_count(name, args, 0, 1);
    return make_ordered_dict(args);
  }
  if (name.rfind("torch.return_types.", 0) == 0) {
    require_count(name, args, 1, 2);
    Item named = new_node(Kind::kNamedTuple, name);
    for (const auto& item : arguments_of(args[0])) adopt(*named.node, item);
    return named;
  }
  if (name == "builtins.set" || name == "builtins.frozenset") {
    require_count(name, args, 1, 1);
    Item set = new_node(Kind::kSet);
    for (const auto& item : node_of(args[0], Kind::kList, "a list").items) adopt(*set.node, item);
    return set;
  }
  if (name == "builtins.slice") {
    require_count(name, args, 3, 3);
    Item slice = new_node(Kind::kSlice);
    for (const auto& part : args) adopt(*slice.node, part);
    return slice;
  }
  return {make_plain(name, args), nullptr};
}

Item storage_of(const Item& persistent_id, PthArchive& archive) {
  const auto& parts = arguments_of(persistent_id);
  if (parts.size() != 5 || text_of(parts[0]) != "storage")
    throw Error("data.pkl refers to something else than a storage");
  const std::string& type = node_of(parts[1], Kind::kGlobal, "a storage type").name;
  const auto dtype = dtype_of_storage(type);
  if (!dtype) throw Error("holds a storage of the type '" + type + "', which is not supported");
  const std::string& key = text_of(parts[2]);
  const at::Storage& storage = archive.storage(key);
  const auto itemsize = static_cast<int64_t>(*dtype == at::ScalarType::Undefined ? 1 : c10::elementSize(*dtype));
  const int64_t numel = int_of(parts[4]);
  int64_t nbytes = 0;
  if (numel < 0 || __builtin_mul_overflow(numel, itemsize, &nbytes) || static_cast<uint64_t>(nbytes) > storage.nbytes())
    throw Error("the storage '" + key + "' has " + std::to_string(storage.nbytes()) +
                " bytes, fewer than data.pkl says");
  Item item = new_node(Kind::kStorage);
  item.node->storage = storage;
  item.node->dtype = *dtype;
  return item;
}

}  // namespace op_tools::pickled
