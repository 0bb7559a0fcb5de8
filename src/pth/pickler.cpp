#include "pth/pickler.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "pth/pickle_bytes.h"
#include "pth/pth.h"
#include "pth/pth_tensors.h"
#include "pth/zip.h"

namespace op_tools {
namespace {

// Compared by address, so each is named once.
constexpr std::string_view kUtils = "torch._utils";
constexpr std::string_view kRebuildV2 = "_rebuild_tensor_v2";
constexpr std::string_view kRebuildV3 = "_rebuild_tensor_v3";
constexpr std::string_view kRebuildSparse = "_rebuild_sparse_tensor";
constexpr std::string_view kRebuildParameter = "_rebuild_parameter";
constexpr std::string_view kOrderedDict = "OrderedDict";
constexpr std::string_view kUntypedStorage = "UntypedStorage";
constexpr std::string_view kGetLayout = "_get_layout";
constexpr std::string_view kSize = "Size";
constexpr std::string_view kDevice = "device";
constexpr std::string_view kBuiltin = "__builtin__";
constexpr std::string_view kComplex = "complex";
constexpr std::string_view kSet = "set";
constexpr std::string_view kEncode = "encode";
constexpr std::string_view kStorageTag = "storage";
constexpr std::string_view kCpu = "cpu";

// Python decodes strings with "surrogatepass", so encoded surrogates are fine; anything else that is
// no UTF-8 makes a file that cannot be loaded at all.
bool python_can_decode(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - i < length) return false;
    for (size_t k = 1; k < length; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return false;
    const auto second = static_cast<unsigned char>(text[i + 1]);
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F))
      return false;
    i += length;
  }
  return true;
}

struct ByteRange {
  size_t begin = std::numeric_limits<size_t>::max();
  size_t end = 0;
};

// The bytes of its storage that a dense tensor shows. Throws when its memory is not as the header
// of pth.h asks for.
ByteRange touched_bytes(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto refuse = [&tensor](const std::string& reason) {
    throw Error("a tensor of " + torch_name(tensor.scalar_type()) + " on " + tensor.device().str() +
                " cannot be written: " + reason);
  };
  if (!tensor.device().is_cpu()) refuse("copy it to the CPU first");
  if (impl->is_nested() || tensor.is_quantized() || impl->has_symbolic_sizes_strides() || !impl->has_storage())
    refuse("nested, quantized, fake and wrapped tensors have no form in a .pth file");
  if (tensor.numel() == 0) return {0, 0};
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const ByteRange range{static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize(),
                        static_cast<size_t>(last + 1) * tensor.itemsize()};
  if (range.end > tensor.storage().nbytes() || tensor.storage().data() == nullptr)
    refuse("it shows more memory than its storage has (" + std::to_string(tensor.storage().nbytes()) + " bytes)");
  return range;
}

// The tensors that a sparse tensor is made of, in the order of Python's rebuild function.
std::array<at::Tensor, 2> sparse_indices(const at::Tensor& tensor) {
  const auto* impl = static_cast<const at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
  return {impl->compressed_indices(), impl->plain_indices()};
}
at::Tensor sparse_values(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (tensor.layout() == at::kSparse) return static_cast<const at::SparseTensorImpl*>(impl)->values();
  return static_cast<const at::SparseCsrTensorImpl*>(impl)->values();
}
bool is_sparse_compressed(at::Layout layout) {
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr || layout == at::kSparseBsc;
}

struct ScannedStorage : PickledStorage {
  ByteRange touched;
  at::ScalarType dtype = at::ScalarType::Undefined;  // of the typed storage; Undefined: written as untyped
  int64_t memo = -1;                                 // its number in the pickle once it was written
};

// Pickles a tree in two walks: the first learns which bytes of which storages are shown, the
// second writes.
class Pickler {
 public:
  Pickled pickle(const Value& value) {
    dtype_memo_.fill(-1);
    scan(value, 0);
    for (auto& record : records_) trim(record);
    write(value);
    out_.op('.');
    return {out_.take(), {std::make_move_iterator(records_.begin()), std::make_move_iterator(records_.end())}};
  }

 private:
  // --- first walk ---
  void scan(const Value& value, int depth) {
    // The tagged dicts (a slice: dict, tuple) need levels of their own.
    if (depth + 3 > kMaxPthDepth) throw Error("values lie deeper in each other than a .pth file may hold");
    if (const auto* tensor = value.get_if<at::Tensor>()) {
      scan_tensor(*tensor);
    } else if (const auto* items = sequence_items(value)) {
      for (const auto& item : *items) scan(item, depth + 1);
    } else if (const auto* dict = value.get_if<Dict>()) {
      for (const auto& [key, item] : *dict->items) {
        scan(key, depth + 1);
        scan(item, depth + 1);
      }
    } else if (const auto* slice = value.get_if<Slice>()) {
      for (const auto& item : *slice->items) scan(item, depth + 1);
    } else if (const auto* generator = value.get_if<Generator>()) {
      if (generator->state.defined()) scan_tensor(generator->state);
    }
  }

  void scan_tensor(const at::Tensor& tensor) {
    if (tensor.layout() == at::kStrided) {
      const ByteRange range = touched_bytes(tensor);
      ScannedStorage& record = record_of(tensor);
      if (range.end == 0) return;
      record.touched.begin = std::min(record.touched.begin, range.begin);
      record.touched.end = std::max(record.touched.end, range.end);
    } else if (tensor.layout() == at::kSparse && tensor.device().is_cpu()) {
      scan_tensor(static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl())->indices());
      scan_tensor(sparse_values(tensor));
    } else if (is_sparse_compressed(tensor.layout()) && tensor.device().is_cpu()) {
      for (const auto& indices : sparse_indices(tensor)) scan_tensor(indices);
      scan_tensor(sparse_values(tensor));
    } else {
      throw Error("a tensor of layout " + torch_name(tensor.layout()) + " on " + tensor.device().str() +
                  " cannot be written to a .pth file");
    }
  }

  ScannedStorage& record_of(const at::Tensor& tensor) {
    const auto [entry, added] = record_index_.try_emplace(tensor.storage().unsafeGetStorageImpl(), records_.size());
    if (added) records_.emplace_back().storage = tensor.storage();
    return records_[entry->second];
  }

  static void trim(ScannedStorage& record) {
    if (record.touched.end == 0) return;
    // Down to a multiple of the alignment, so that element offsets stay whole for every dtype.
    record.begin = record.touched.begin / kZipAlignment * kZipAlignment;
    record.size = record.touched.end - record.begin;
  }

  // --- second walk ---
  void write(const Value& value) {
    std::visit([this](const auto& alternative) { add(alternative); }, value.variant());
  }

  void add(const None&) { out_.op('N'); }
  void add(bool value) { out_.op(value ? '\x88' : '\x89'); }
  void add(int64_t value) { out_.number(value); }
  void add(double value) { out_.number(value); }
  void add(const c10::complex<double>& value) {
    out_.known_global(kBuiltin, kComplex);
    out_.number(value.real());
    out_.number(value.imag());
    out_.ops("\x86R");
  }
  void add(const std::string& text) {
    if (python_can_decode(text)) {
      out_.text(text);
    } else {
      add_bytes(text);
    }
  }
  void add(at::ScalarType dtype) { put_dtype(dtype); }
  void add(const c10::Device& device) {
    out_.known_global("torch", kDevice);
    put_device_text(device);
    out_.ops("\x85R");
  }
  void add(at::Layout layout) { put_layout(layout); }
  void add(at::MemoryFormat format) {
    put_tag("__memory_format__");
    out_.text(torch_name(format));
    out_.op('s');
  }
  void add(at::QScheme scheme) { put_torch_global(torch_name(scheme)); }
  void add(const Size& size) { put_size(size.sizes); }
  void add(const Slice& slice) {
    put_tag("__slice__");
    put_tuple(*slice.items);
    out_.op('s');
  }
  void add(const Ellipsis&) {
    put_tag("__ellipsis__");
    out_.ops("\x88s");
  }
  void add(const List& list) { put_list(*list.items); }
  void add(const Tuple& tuple) { put_tuple(*tuple.items); }
  void add(const NamedTuple& named) {
    // Torch's own (torch.return_types.max) are plain tuples for people who torch.load the file.
    if (named.type.starts_with("torch.return_types.")) return put_tuple(*named.items);
    put_tag("__namedtuple__");
    add(named.type);
    put_tuple(*named.items);
    out_.ops("\x86s");
  }
  void add(const Dict& dict) {
    out_.op('}');
    if (dict.items->empty()) return;
    out_.op('(');
    for (const auto& [key, item] : *dict.items) {
      write(key);
      write(item);
    }
    out_.op('u');
  }
  void add(const Set& set) {
    out_.known_global(kBuiltin, kSet);
    put_list(*set.items);
    out_.ops("\x85R");
  }
  void add(const Bytes& bytes) { add_bytes(bytes.bytes); }
  void add(const Generator& generator) {
    put_tag("__generator__");
    out_.known_global("torch", kDevice);
    put_device_text(generator.device);
    out_.ops("\x85R");
    write(generator.state);
    out_.ops("\x86s");
  }
  void add(const Unsupported& unsupported) {
    put_tag("__unsupported__");
    add(unsupported.type);
    add(unsupported.why);
    out_.ops("\x86s");
  }

  // Bytes have no opcode in protocol 2; Python itself writes them as a text of code points below
  // 256.
  void add_bytes(std::string_view bytes) {
    std::string text;
    text.reserve(bytes.size());
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x80) {
        text += c;
      } else {
        text += static_cast<char>(0xC0 | byte >> 6);
        text += static_cast<char>(0x80 | (byte & 0x3F));
      }
    }
    out_.known_global("_codecs", kEncode);
    out_.text(text);
    out_.text("latin1");
    out_.ops("\x86R");
  }

  void add(const at::Tensor& tensor) {
    const auto [entry, added] = tensor_memo_.try_emplace(tensor.unsafeGetTensorImpl(), 0);
    uint32_t& memo = entry->second;  // stays where it is when the parts of a sparse tensor come in
    if (!added) {
      out_.recall(memo);
      return;
    }
    if (tensor.layout() == at::kStrided) {
      put_dense(tensor);
    } else if (tensor.requires_grad()) {
      // Python's rebuild function for sparse tensors knows no requires_grad; a Parameter does.
      out_.known_global(kUtils, kRebuildParameter);
      put_sparse(tensor);
      out_.op('\x88');
      put_empty_hooks();
      out_.ops("\x87R");
    } else {
      put_sparse(tensor);
    }
    memo = out_.memoize();
  }

  void put_dense(const at::Tensor& tensor) {
    ScannedStorage& record = record_of(tensor);
    const at::ScalarType dtype = tensor.scalar_type();
    if (record.memo < 0 && !typed_storage_name(dtype).empty() && record.size % tensor.itemsize() == 0)
      record.dtype = dtype;
    // The first tensor of a storage gives it its type; a tensor of another dtype on the same storage
    // names its own.
    const bool typed = record.dtype == dtype;
    out_.known_global(kUtils, typed ? kRebuildV2 : kRebuildV3);
    out_.op('(');
    put_storage(record);
    out_.number(tensor.numel() == 0 ? 0
                                    : tensor.storage_offset() - static_cast<int64_t>(record.begin / tensor.itemsize()));
    put_ints(tensor.sizes());
    put_ints(tensor.strides());
    add(tensor.requires_grad());
    put_empty_hooks();
    if (!typed) put_dtype(dtype);
    if (tensor.is_conj() || tensor.is_neg()) {
      out_.ops("}(");
      if (tensor.is_conj()) {
        out_.text("conj");
        out_.op('\x88');
      }
      if (tensor.is_neg()) {
        out_.text("neg");
        out_.op('\x88');
      }
      out_.op('u');
    }
    out_.ops("tR");
  }

  void put_storage(ScannedStorage& record) {
    if (record.memo >= 0) {
      out_.recall(static_cast<uint32_t>(record.memo));
      return;
    }
    const bool typed = record.dtype != at::ScalarType::Undefined;
    out_.op('(');
    out_.known_text(kStorageTag);
    if (typed) {
      out_.known_global("torch", typed_storage_name(record.dtype));
    } else {
      out_.known_global("torch.storage", kUntypedStorage);
    }
    out_.text(std::to_string(&record - records_.data()));
    out_.known_text(kCpu);
    out_.number(static_cast<int64_t>(typed ? record.size / c10::elementSize(record.dtype) : record.size));
    out_.ops("tQ");
    record.memo = out_.memoize();
  }

  void put_sparse(const at::Tensor& tensor) {
    out_.known_global(kUtils, kRebuildSparse);
    put_layout(tensor.layout());
    out_.op('(');
    if (tensor.layout() == at::kSparse) {
      const auto* impl = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
      add(impl->indices());
      add(impl->values());
      put_size(tensor.sizes());
      add(impl->coalesced());
    } else {
      for (const auto& indices : sparse_indices(tensor)) add(indices);
      add(sparse_values(tensor));
      put_size(tensor.sizes());
    }
    out_.ops("t\x86R");
  }

  void put_empty_hooks() {
    out_.known_global("collections", kOrderedDict);
    out_.ops(")R");
  }

  void put_tag(std::string_view tag) {
    out_.op('}');
    out_.text(tag);
  }

  void put_list(const Values& items) {
    out_.op(']');
    if (items.empty()) return;
    out_.op('(');
    for (const auto& item : items) write(item);
    out_.op('e');
  }

  void put_tuple(const Values& items) {
    if (items.empty()) {
      out_.op(')');
      return;
    }
    out_.op('(');
    for (const auto& item : items) write(item);
    out_.op('t');
  }

  void put_ints(at::IntArrayRef numbers) {
    out_.op('(');
    for (const int64_t number : numbers) out_.number(number);
    out_.op('t');
  }

  void put_size(at::IntArrayRef sizes) {
    out_.known_global("torch", kSize);
    put_ints(sizes);
    out_.ops("\x85R");
  }

  void put_layout(at::Layout layout) {
    out_.known_global("torch.serialization", kGetLayout);
    out_.text(torch_name(layout));
    out_.ops("\x85R");
  }

  void put_dtype(at::ScalarType dtype) {
    int64_t& memo = dtype_memo_[static_cast<size_t>(dtype)];
    if (memo >= 0) {
      out_.recall(static_cast<uint32_t>(memo));
      return;
    }
    if (dtype == at::ScalarType::Undefined) throw Error("an undefined dtype cannot be written to a .pth file");
    put_torch_global(torch_name(dtype));
    memo = out_.memoize();
  }

  void put_torch_global(const std::string& full_name) {  // "torch.float32"
    constexpr std::string_view kModule = "torch";
    out_.global(kModule, std::string_view(full_name).substr(kModule.size() + 1));
  }

  void put_device_text(const c10::Device& device) {
    // By the name that every Python knows: a renamed backend's own is unknown where it is not
    // installed.
    if (device.type() != at::kPrivateUse1) {
      out_.text(device.str());
    } else {
      out_.text("privateuseone" + (device.has_index() ? ":" + std::to_string(device.index()) : std::string()));
    }
  }

  PickleBytes out_;
  std::vector<ScannedStorage> records_;
  std::unordered_map<const void*, size_t> record_index_;   // by StorageImpl
  std::unordered_map<const void*, uint32_t> tensor_memo_;  // by TensorImpl
  std::array<int64_t, static_cast<size_t>(at::ScalarType::NumOptions)> dtype_memo_;
};

}  // namespace

Pickled pickle(const Value& value) {
  return Pickler().pickle(value);
}

}  // namespace op_tools
