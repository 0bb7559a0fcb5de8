#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <unordered_map>

#include "capture/pth.h"
#include "capture/zip.h"
#include "hooks/error.h"

namespace op_tools {
namespace {

// Globals as they stand in a pickle: module, newline, name, newline. Compared by address, so each
// is named once.
constexpr std::string_view kRebuildV2 = "torch._utils\n_rebuild_tensor_v2\n";
constexpr std::string_view kRebuildV3 = "torch._utils\n_rebuild_tensor_v3\n";
constexpr std::string_view kRebuildSparse = "torch._utils\n_rebuild_sparse_tensor\n";
constexpr std::string_view kRebuildParameter = "torch._utils\n_rebuild_parameter\n";
constexpr std::string_view kOrderedDict = "collections\nOrderedDict\n";
constexpr std::string_view kUntypedStorage = "torch.storage\nUntypedStorage\n";
constexpr std::string_view kGetLayout = "torch.serialization\n_get_layout\n";
constexpr std::string_view kSize = "torch\nSize\n";
constexpr std::string_view kDevice = "torch\ndevice\n";
constexpr std::string_view kComplex = "__builtin__\ncomplex\n";
constexpr std::string_view kSet = "__builtin__\nset\n";
constexpr std::string_view kStorageTag = "storage";
constexpr std::string_view kCpu = "cpu";
constexpr std::string_view kEncode = "_codecs\nencode\n";

// The typed storage class that old dtypes have in Python; newer dtypes have none and are rebuilt
// from untyped storages.
std::string_view typed_storage(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "torch\nFloatStorage\n";
    case at::kDouble:
      return "torch\nDoubleStorage\n";
    case at::kHalf:
      return "torch\nHalfStorage\n";
    case at::kBFloat16:
      return "torch\nBFloat16Storage\n";
    case at::kByte:
      return "torch\nByteStorage\n";
    case at::kChar:
      return "torch\nCharStorage\n";
    case at::kShort:
      return "torch\nShortStorage\n";
    case at::kInt:
      return "torch\nIntStorage\n";
    case at::kLong:
      return "torch\nLongStorage\n";
    case at::kBool:
      return "torch\nBoolStorage\n";
    case at::kComplexFloat:
      return "torch\nComplexFloatStorage\n";
    case at::kComplexDouble:
      return "torch\nComplexDoubleStorage\n";
    default:
      return {};
  }
}

// Python decodes texts with "surrogatepass", so encoded surrogates are fine; anything else that is
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

// The bytes of its storage that a dense tensor shows. Throws when its memory is not what the header
// of pth.h asks for.
ByteRange touched_bytes(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto refuse = [&tensor](const std::string& what) {
    throw Error("a tensor of " + torch_name(tensor.scalar_type()) + " on " + tensor.device().str() +
                " cannot be written: " + what);
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

// One storage of the tree, trimmed.
struct StorageRecord {
  at::Storage storage;  // keeps the memory
  ByteRange touched;
  size_t begin = 0;  // first byte that is written
  size_t size = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;  // of the typed storage; Undefined: written as untyped
  int64_t memo = -1;                                 // its number in the pickle once it was written

  std::string_view payload() const {
    return {size == 0 ? nullptr : static_cast<const char*>(storage.data()) + begin, size};
  }
};

// Pickles one tree in two walks: the first learns which bytes of which storages are shown, the
// second writes.
class Pickler {
 public:
  void pickle(const Value& value) {
    out_.reserve(1024);
    dtype_memo_.fill(-1);
    scan(value, 0);
    for (auto& record : records_) trim(record);
    put_op('\x80');
    put_op('\x02');
    write(value);
    put_op('.');
  }

  std::string& bytes() { return out_; }
  std::vector<StorageRecord>& records() { return records_; }

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
      StorageRecord& record = record_of(tensor);
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

  StorageRecord& record_of(const at::Tensor& tensor) {
    const auto [found, added] = record_index_.try_emplace(tensor.storage().unsafeGetStorageImpl(), records_.size());
    if (added) records_.emplace_back().storage = tensor.storage();
    return records_[found->second];
  }

  static void trim(StorageRecord& record) {
    if (record.touched.end == 0) return;
    // Down to a multiple of the alignment, so that element offsets stay whole for every dtype.
    record.begin = record.touched.begin / kZipAlignment * kZipAlignment;
    record.size = record.touched.end - record.begin;
  }

  // --- second walk ---
  void write(const Value& value) {
    std::visit([this](const auto& alternative) { add(alternative); }, value.variant());
  }

  void add(const None&) { put_op('N'); }
  void add(bool value) { put_op(value ? '\x88' : '\x89'); }
  void add(int64_t value) { put_int(value); }
  void add(double value) { put_double(value); }
  void add(const c10::complex<double>& value) {
    put_global(kComplex);
    put_double(value.real());
    put_double(value.imag());
    put_ops("\x86R");
  }
  void add(const std::string& text) {
    if (python_can_decode(text)) {
      put_text(text);
    } else {
      add_bytes(text);
    }
  }
  void add(at::ScalarType dtype) { put_dtype(dtype); }
  void add(const c10::Device& device) {
    put_global(kDevice);
    put_device_text(device);
    put_ops("\x85R");
  }
  void add(at::Layout layout) { put_layout(layout); }
  void add(at::MemoryFormat format) {
    put_tag("__memory_format__");
    put_text(torch_name(format));
    put_op('s');
  }
  void add(at::QScheme scheme) {
    put_op('c');
    out_ += "torch\n" + torch_name(scheme).substr(6) + "\n";
  }
  void add(const Size& size) { put_size(size.sizes); }
  void add(const Slice& slice) {
    put_tag("__slice__");
    put_tuple(*slice.items);
    put_op('s');
  }
  void add(const Ellipsis&) {
    put_tag("__ellipsis__");
    put_ops("\x88s");
  }
  void add(const List& list) { put_list(*list.items); }
  void add(const Tuple& tuple) { put_tuple(*tuple.items); }
  // A plain tuple for people who torch.load the file; meta.json says what it was.
  void add(const NamedTuple& named) { put_tuple(*named.items); }
  void add(const Dict& dict) {
    put_op('}');
    if (dict.items->empty()) return;
    put_op('(');
    for (const auto& [key, item] : *dict.items) {
      write(key);
      write(item);
    }
    put_op('u');
  }
  void add(const Set& set) {
    put_global(kSet);
    put_list(*set.items);
    put_ops("\x85R");
  }
  void add(const Bytes& bytes) { add_bytes(bytes.bytes); }
  void add(const Generator& generator) {
    put_tag("__generator__");
    put_global(kDevice);
    put_device_text(generator.device);
    put_ops("\x85R");
    write(generator.state);
    put_ops("\x86s");
  }
  void add(const Unsupported& unsupported) {
    put_tag("__unsupported__");
    add(unsupported.type);
    add(unsupported.why);
    put_ops("\x86s");
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
    put_global(kEncode);
    put_text(text);
    put_text("latin1");
    put_ops("\x86R");
  }

  void add(const at::Tensor& tensor) {
    const auto [found, added] = tensor_memo_.try_emplace(tensor.unsafeGetTensorImpl(), 0);
    uint32_t& memo = found->second;  // stays where it is when the parts of a sparse tensor come in
    if (!added) {
      put_get(memo);
      return;
    }
    if (tensor.layout() == at::kStrided) {
      put_dense(tensor);
    } else if (tensor.requires_grad()) {
      // Python's rebuild function for sparse tensors knows no requires_grad; a Parameter does.
      put_global(kRebuildParameter);
      put_sparse(tensor);
      put_op('\x88');
      put_empty_hooks();
      put_ops("\x87R");
    } else {
      put_sparse(tensor);
    }
    memo = put_memo();
  }

  void put_dense(const at::Tensor& tensor) {
    StorageRecord& record = record_of(tensor);
    const at::ScalarType dtype = tensor.scalar_type();
    if (record.memo < 0 && !typed_storage(dtype).empty() && record.size % tensor.itemsize() == 0) record.dtype = dtype;
    // The first tensor of a storage gives it its type; one of another dtype on the same storage
    // names its own.
    const bool typed = record.dtype == dtype;
    put_global(typed ? kRebuildV2 : kRebuildV3);
    put_op('(');
    put_storage(record);
    put_int(tensor.numel() == 0 ? 0 : tensor.storage_offset() - static_cast<int64_t>(record.begin / tensor.itemsize()));
    put_ints(tensor.sizes());
    put_ints(tensor.strides());
    add(tensor.requires_grad());
    put_empty_hooks();
    if (!typed) put_dtype(dtype);
    if (tensor.is_conj() || tensor.is_neg()) {
      put_ops("}(");
      if (tensor.is_conj()) {
        put_text("conj");
        put_op('\x88');
      }
      if (tensor.is_neg()) {
        put_text("neg");
        put_op('\x88');
      }
      put_op('u');
    }
    put_ops("tR");
  }

  void put_storage(StorageRecord& record) {
    if (record.memo >= 0) {
      put_get(static_cast<uint32_t>(record.memo));
      return;
    }
    const bool typed = record.dtype != at::ScalarType::Undefined;
    put_op('(');
    put_constant(kStorageTag);
    put_global(typed ? typed_storage(record.dtype) : kUntypedStorage);
    put_text(std::to_string(&record - records_.data()));
    put_constant(kCpu);
    put_int(static_cast<int64_t>(typed ? record.size / c10::elementSize(record.dtype) : record.size));
    put_ops("tQ");
    record.memo = put_memo();
  }

  void put_sparse(const at::Tensor& tensor) {
    put_global(kRebuildSparse);
    put_layout(tensor.layout());
    put_op('(');
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
    put_ops("t\x86R");
  }

  void put_empty_hooks() {
    put_global(kOrderedDict);
    put_ops(")R");
  }

  void put_tag(std::string_view tag) {
    put_op('}');
    put_text(tag);
  }

  void put_list(const Values& items) {
    put_op(']');
    if (items.empty()) return;
    put_op('(');
    for (const auto& item : items) write(item);
    put_op('e');
  }

  void put_tuple(const Values& items) {
    if (items.empty()) {
      put_op(')');
      return;
    }
    put_op('(');
    for (const auto& item : items) write(item);
    put_op('t');
  }

  void put_ints(at::IntArrayRef numbers) {
    put_op('(');
    for (const int64_t number : numbers) put_int(number);
    put_op('t');
  }

  void put_size(at::IntArrayRef sizes) {
    put_global(kSize);
    put_ints(sizes);
    put_ops("\x85R");
  }

  void put_layout(at::Layout layout) {
    put_global(kGetLayout);
    put_text(torch_name(layout));
    put_ops("\x85R");
  }

  void put_dtype(at::ScalarType dtype) {
    int64_t& memo = dtype_memo_[static_cast<size_t>(dtype)];
    if (memo >= 0) {
      put_get(static_cast<uint32_t>(memo));
      return;
    }
    if (dtype == at::ScalarType::Undefined) throw Error("an undefined dtype cannot be written to a .pth file");
    put_op('c');
    out_ += "torch\n" + torch_name(dtype).substr(6) + "\n";
    memo = put_memo();
  }

  void put_device_text(const c10::Device& device) {
    // By the name that every Python knows: a renamed backend's own is unknown where it is not
    // installed.
    if (device.type() != at::kPrivateUse1) {
      put_text(device.str());
    } else {
      put_text("privateuseone" + (device.has_index() ? ":" + std::to_string(device.index()) : std::string()));
    }
  }

  // --- opcodes ---
  void put_op(char op) { out_.push_back(op); }
  void put_ops(const char* ops) { out_ += ops; }

  template <class T>
  void put_raw(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  void put_int(int64_t value) {
    if (value >= 0 && value <= std::numeric_limits<uint8_t>::max()) {
      put_op('K');
      put_raw(static_cast<uint8_t>(value));
    } else if (value >= 0 && value <= std::numeric_limits<uint16_t>::max()) {
      put_op('M');
      put_raw(static_cast<uint16_t>(value));
    } else if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
      put_op('J');
      put_raw(static_cast<int32_t>(value));
    } else {
      put_op('\x8a');
      put_op('\x08');
      put_raw(value);
    }
  }

  void put_double(double value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    put_op('G');
    put_raw(__builtin_bswap64(bits));
  }

  void put_text(std::string_view text) {
    if (text.size() > std::numeric_limits<uint32_t>::max())
      throw Error("a text of over 4 GiB cannot be written to a .pth file");
    put_op('X');
    put_raw(static_cast<uint32_t>(text.size()));
    out_ += text;
  }

  // Globals and texts that come with every tensor: written once, then referred to. Few, so a list
  // beats a map.
  void put_global(std::string_view global) {
    if (put_known(global)) return;
    put_op('c');
    out_ += global;
    constant_memo_.emplace_back(global.data(), put_memo());
  }
  void put_constant(std::string_view text) {
    if (put_known(text)) return;
    put_text(text);
    constant_memo_.emplace_back(text.data(), put_memo());
  }
  bool put_known(std::string_view constant) {
    for (const auto& [text, memo] : constant_memo_) {
      if (text != constant.data()) continue;
      put_get(memo);
      return true;
    }
    return false;
  }

  uint32_t put_memo() {
    if (memo_count_ <= std::numeric_limits<uint8_t>::max()) {
      put_op('q');
      put_raw(static_cast<uint8_t>(memo_count_));
    } else {
      put_op('r');
      put_raw(memo_count_);
    }
    return memo_count_++;
  }

  void put_get(uint32_t memo) {
    if (memo <= std::numeric_limits<uint8_t>::max()) {
      put_op('h');
      put_raw(static_cast<uint8_t>(memo));
    } else {
      put_op('j');
      put_raw(memo);
    }
  }

  std::string out_;
  std::vector<StorageRecord> records_;
  std::unordered_map<const void*, size_t> record_index_;         // by StorageImpl
  std::unordered_map<const void*, uint32_t> tensor_memo_;        // by TensorImpl
  std::vector<std::pair<const char*, uint32_t>> constant_memo_;  // by address
  std::array<int64_t, static_cast<size_t>(at::ScalarType::NumOptions)> dtype_memo_;
  uint32_t memo_count_ = 0;
};

}  // namespace

struct EncodedPth::Impl {
  // Payloads up to this size are copied next to their headers: fewer pieces, fewer system calls.
  static constexpr size_t kCopyBelow = 4096;
  static constexpr size_t kNotLarge = std::numeric_limits<size_t>::max();

  struct Entry {
    std::string name;
    std::string_view payload;
    size_t large = kNotLarge;  // its place in large_pieces
  };

  std::string pickle;
  std::vector<StorageRecord> records;
  std::vector<Entry> entries;
  std::vector<Piece> large_pieces;
  std::vector<std::optional<uint32_t>> large_crcs;
  uint64_t size = 0;

  // After finish():
  bool is_finished = false;
  std::string own;  // headers and small payloads
  std::vector<Piece> pieces;
  uint32_t crc = 0;

  // Where the large payloads will stand, and the size of the whole: what does not depend on the CRCs, so no payload is
  // read. A file without large payloads is made at once.
  void lay_out() {
    for (Entry& entry : entries) {
      if (entry.payload.size() <= kCopyBelow) continue;
      entry.large = large_pieces.size();
      large_pieces.push_back({entry.payload.data(), entry.payload.size()});
    }
    if (large_pieces.empty()) return finish();
    large_crcs.resize(large_pieces.size());
    std::string header;
    ZipDirectory directory;
    for (const Entry& entry : entries) {
      header.clear();
      append_local_header(header, entry.name, entry.payload.size(), 0, size);
      directory.add(entry.name, entry.payload.size(), 0, size);
      size += header.size();
      if (entry.large != kNotLarge) large_pieces[entry.large].position = size;
      size += entry.payload.size();
    }
    header.clear();
    directory.append_to(header, size);
    size += header.size();
  }

  void finish() {
    if (is_finished) return;
    ZipDirectory directory;
    uint64_t position = 0;
    own.reserve(pickle.size() + 1024 + 256 * records.size());
    for (const Entry& entry : entries) {
      const bool is_large = entry.large != kNotLarge;
      const uint32_t payload_crc =
          is_large && large_crcs[entry.large] ? *large_crcs[entry.large] : crc32_of(entry.payload);
      directory.add(entry.name, entry.payload.size(), payload_crc, position);
      const size_t before = own.size();
      append_local_header(own, entry.name, entry.payload.size(), payload_crc, position);
      position += own.size() - before + entry.payload.size();
      if (!is_large) {
        own += entry.payload;
        continue;
      }
      end_own_piece();
      pieces.push_back(large_pieces[entry.large]);
      crc = crc32_join(crc, payload_crc, entry.payload.size());
    }
    directory.append_to(own, position);
    end_own_piece();
    // `own` moved while it grew: only now are its addresses final.
    const char* next = own.data();
    position = 0;
    for (auto& piece : pieces) {
      if (piece.data == nullptr) {
        piece = {next, piece.size, position};
        next += piece.size;
      }
      position += piece.size;
    }
    size = position;
    is_finished = true;
  }

 private:
  void end_own_piece() {
    const std::string_view fresh = std::string_view(own).substr(own_pieces_end_);
    crc = crc32_of(fresh, crc);
    pieces.push_back({nullptr, fresh.size()});
    own_pieces_end_ = own.size();
  }

  size_t own_pieces_end_ = 0;
};

EncodedPth::EncodedPth(const Value& value) : impl_(std::make_unique<Impl>()) {
  Pickler pickler;
  try {
    pickler.pickle(value);
  } catch (const c10::Error& error) {
    // A fake tensor, for one, throws when asked for its memory.
    throw Error(std::string("torch does not give the memory of a tensor: ") + error.what_without_backtrace());
  }
  impl_->pickle = std::move(pickler.bytes());
  impl_->records = std::move(pickler.records());

  auto& entries = impl_->entries;
  entries.reserve(3 + impl_->records.size());
  entries.push_back({"archive/data.pkl", impl_->pickle});
  entries.push_back({"archive/byteorder", "little"});
  for (size_t i = 0; i < impl_->records.size(); ++i) {
    entries.push_back({"archive/data/" + std::to_string(i), impl_->records[i].payload()});
  }
  entries.push_back({"archive/version", "3\n"});
  impl_->lay_out();
}

EncodedPth::~EncodedPth() = default;
EncodedPth::EncodedPth(EncodedPth&&) noexcept = default;
EncodedPth& EncodedPth::operator=(EncodedPth&&) noexcept = default;

uint64_t EncodedPth::size() const {
  return impl_->size;
}
const std::vector<EncodedPth::Piece>& EncodedPth::large_pieces() const {
  return impl_->large_pieces;
}
void EncodedPth::set_crc(size_t large_piece, uint32_t crc) {
  impl_->large_crcs.at(large_piece) = crc;
}
std::vector<EncodedPth::Piece> EncodedPth::other_pieces() const {
  std::vector<Piece> others;
  for (const Piece& piece : pieces()) {
    const bool is_own = piece.data >= impl_->own.data() && piece.data < impl_->own.data() + impl_->own.size();
    if (is_own) others.push_back(piece);
  }
  return others;
}
const std::vector<EncodedPth::Piece>& EncodedPth::pieces() const {
  impl_->finish();
  return impl_->pieces;
}
uint32_t EncodedPth::crc() const {
  impl_->finish();
  return impl_->crc;
}

}  // namespace op_tools
