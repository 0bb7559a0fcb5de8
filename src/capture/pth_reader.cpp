#include <ATen/core/Tensor.h>
#include <ATen/ops/detach_ops.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <unordered_map>

#include "capture/pth.h"
#include "capture/pth_archive.h"
#include "capture/pth_tensors.h"
#include "capture/shared_bytes.h"
#include "capture/zip.h"
#include "hooks/error.h"

namespace op_tools {
namespace {

// What stands on the pickle machine's stack: a finished value, or a node.
struct Node;
struct Item {
  Value value;
  std::shared_ptr<Node> node;  // when set, `value` is unused
};

// A container in the making, or a thing that only exists while unpickling (a global, a storage).
struct Node {
  enum class Kind : uint8_t { kTuple, kList, kDict, kSet, kNamedTuple, kGlobal, kStorage };

  explicit Node(Kind kind, std::string name = {}) : kind(kind), name(std::move(name)) {}

  Kind kind;
  bool frozen = false;  // it lies in another node and may not grow any more: no cycles, and depth
                        // and size are final
  int depth = 1;
  uint64_t size = 1;        // values in it, counted as often as a walk meets them
  std::string name;         // global: module.name; named tuple: its type
  std::vector<Item> items;  // dict: key, value, key, value
  at::Storage storage;
  at::ScalarType dtype = at::ScalarType::Undefined;  // of a typed storage
  bool is_built = false;
  Value built;
};
using Kind = Node::Kind;

std::optional<at::ScalarType> dtype_of_storage(std::string_view global) {
  static const auto* const kTypes = new std::unordered_map<std::string_view, at::ScalarType>{
      {"torch.FloatStorage", at::kFloat},
      {"torch.DoubleStorage", at::kDouble},
      {"torch.HalfStorage", at::kHalf},
      {"torch.BFloat16Storage", at::kBFloat16},
      {"torch.ByteStorage", at::kByte},
      {"torch.CharStorage", at::kChar},
      {"torch.ShortStorage", at::kShort},
      {"torch.IntStorage", at::kInt},
      {"torch.LongStorage", at::kLong},
      {"torch.BoolStorage", at::kBool},
      {"torch.ComplexFloatStorage", at::kComplexFloat},
      {"torch.ComplexDoubleStorage", at::kComplexDouble},
      {"torch.storage.UntypedStorage", at::ScalarType::Undefined}};
  const auto found = kTypes->find(global);
  return found == kTypes->end() ? std::nullopt : std::optional(found->second);
}

// Runs one pickle. It builds plain values and tensors only; a global is looked up in the fixed list
// of call() and never imported or run.
class Unpickler {
 public:
  // `shared`: the tensors whose bytes lie in other files; nullptr: their tagged dicts are refused.
  Unpickler(std::string_view pickle, PthArchive& archive, SharedTensors* shared)
      : rest_(pickle), archive_(archive), shared_(shared), text_budget_(16 * pickle.size() + (1 << 20)) {}

  Value run() {
    if (read<uint8_t>() != kProto) throw Error("data.pkl does not start as a pickle of protocol 2 to 5 does");
    const int protocol = read<uint8_t>();
    if (protocol < 2 || protocol > 5) throw Error("data.pkl has pickle protocol " + std::to_string(protocol));
    while (step(read<uint8_t>())) {
    }
    const Item result = pop();
    if (!stack_.empty() || !marks_.empty() || !rest_.empty()) throw Error("data.pkl holds more than one value");
    return build(result);
  }

 private:
  static constexpr uint8_t kProto = 0x80;
  // Far above real calls. Each bounds what a hostile file may cost: values made, values met in a
  // walk.
  static constexpr uint64_t kMaxItems = uint64_t{1} << 22;
  static constexpr uint64_t kMaxTreeSize = uint64_t{1} << 23;

  // --- reading ---
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) throw Error("data.pkl is cut off");
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  template <class T>
  T read() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view read_line() {
    const size_t end = rest_.find('\n');
    if (end == std::string_view::npos) throw Error("data.pkl is cut off");
    const std::string_view line = take(end);
    take(1);
    return line;
  }

  // --- stack ---
  void charge_text(uint64_t size) {
    if (size > text_budget_) throw Error("data.pkl unfolds to far more text than it has bytes");
    text_budget_ -= size;
  }
  void push(Item item) {
    if (++item_count_ > kMaxItems) throw Error("data.pkl holds more than " + std::to_string(kMaxItems) + " values");
    if (const auto* text = item.value.get_if<std::string>()) charge_text(text->size());
    if (const auto* bytes = item.value.get_if<Bytes>()) charge_text(bytes->bytes.size());
    if (const auto* size = item.value.get_if<Size>()) charge_text(size->sizes.size());
    stack_.push_back(std::move(item));
  }
  void push_value(Value value) { push({std::move(value), nullptr}); }
  std::shared_ptr<Node> push_node(Kind kind, std::string name = {}) {
    auto node = std::make_shared<Node>(kind, std::move(name));
    push({Value(), node});
    return node;
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Item& top() {
    if (stack_.size() <= floor()) throw Error("data.pkl takes more from its stack than it put there");
    return stack_.back();
  }
  Item pop() {
    Item item = std::move(top());
    stack_.pop_back();
    return item;
  }
  std::vector<Item> pop_to_mark() {
    if (marks_.empty()) throw Error("data.pkl goes back to a mark that it never set");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Item> items(std::make_move_iterator(from), std::make_move_iterator(stack_.end()));
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }
  std::vector<Item> pop_count(size_t count) {
    std::vector<Item> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }

  // --- containers ---
  void adopt(Node& parent, Item child) {
    if (child.node) {
      child.node->frozen = true;
      parent.depth = std::max(parent.depth, child.node->depth + 1);
      parent.size += child.node->size;
    } else {
      ++parent.size;
    }
    // After freezing: a list that is put into itself is refused here.
    if (parent.frozen) throw Error("data.pkl changes a value that lies in another one already");
    if (parent.depth > kMaxPthDepth)
      throw Error("values lie more than " + std::to_string(kMaxPthDepth) + " deep in each other");
    if (parent.size > kMaxTreeSize) throw Error("data.pkl unfolds to far more values than it has bytes");
    parent.items.push_back(std::move(child));
  }
  void push_tuple(std::vector<Item> items) {
    auto node = std::make_shared<Node>(Kind::kTuple);
    for (auto& item : items) adopt(*node, std::move(item));
    push({Value(), std::move(node)});
  }
  void append(Kind kind, std::vector<Item> items) {
    const auto node = top().node;
    if (!node || node->kind != kind) throw Error("data.pkl appends to what is no container for it");
    if (kind == Kind::kDict && items.size() % 2 != 0) throw Error("data.pkl has a key without a value");
    for (auto& item : items) adopt(*node, std::move(item));
  }

  void memoize(uint64_t id) {
    if (++item_count_ > kMaxItems) throw Error("data.pkl holds more than " + std::to_string(kMaxItems) + " values");
    const Item& item = top();
    if (const auto* text = item.value.get_if<std::string>()) charge_text(text->size());
    if (const auto* bytes = item.value.get_if<Bytes>()) charge_text(bytes->bytes.size());
    memo_[id] = item;
  }
  void recall(uint64_t id) {
    const auto found = memo_.find(id);
    if (found == memo_.end()) throw Error("data.pkl refers to memo " + std::to_string(id) + ", which it never set");
    push(found->second);
  }

  // --- scalars ---
  void push_long(std::string_view bytes) {
    // Little endian two's complement of any length.
    const bool negative = !bytes.empty() && static_cast<signed char>(bytes.back()) < 0;
    const char sign = negative ? '\xff' : '\0';
    size_t used = bytes.size();
    while (used > 8 && bytes[used - 1] == sign) --used;
    const bool sign_lost = used == 8 && (static_cast<signed char>(bytes[7]) < 0) != negative;
    if (used > 8 || sign_lost) {
      push_value(Unsupported{"int", "does not fit into 64 bits"});
      return;
    }
    std::array<char, 8> extended;
    extended.fill(sign);
    std::copy_n(bytes.begin(), used, extended.begin());
    int64_t value = 0;
    std::memcpy(&value, extended.data(), sizeof value);
    push_value(value);
  }
  void push_float() {
    const uint64_t bits = __builtin_bswap64(read<uint64_t>());
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    push_value(value);
  }
  void push_text(uint64_t size) { push_value(std::string(take(size))); }
  void push_bytes(uint64_t size) { push_value(Bytes{std::string(take(size))}); }

  // One opcode; false after STOP.
  bool step(uint8_t op) {
    switch (op) {
      case '.':
        return false;
      case 0x95:
        read<uint64_t>();
        break;  // FRAME: only a hint
      case '(':
        if (++item_count_ > kMaxItems) throw Error("data.pkl sets too many marks");
        marks_.push_back(stack_.size());
        break;
      case 'N':
        push_value(None{});
        break;
      case 0x88:
        push_value(true);
        break;
      case 0x89:
        push_value(false);
        break;
      case 'K':
        push_value(int64_t{read<uint8_t>()});
        break;
      case 'M':
        push_value(int64_t{read<uint16_t>()});
        break;
      case 'J':
        push_value(int64_t{read<int32_t>()});
        break;
      case 0x8a:
        push_long(take(read<uint8_t>()));
        break;
      case 0x8b:
        push_long(take(read<uint32_t>()));
        break;
      case 'G':
        push_float();
        break;
      case 'X':
        push_text(read<uint32_t>());
        break;
      case 0x8c:
        push_text(read<uint8_t>());
        break;
      case 0x8d:
        push_text(read<uint64_t>());
        break;
      case 'C':
        push_bytes(read<uint8_t>());
        break;
      case 'B':
        push_bytes(read<uint32_t>());
        break;
      case 0x8e:
      case 0x96:
        push_bytes(read<uint64_t>());
        break;
      case ')':
        push_tuple({});
        break;
      case 't':
        push_tuple(pop_to_mark());
        break;
      case 0x85:
        push_tuple(pop_count(1));
        break;
      case 0x86:
        push_tuple(pop_count(2));
        break;
      case 0x87:
        push_tuple(pop_count(3));
        break;
      case ']':
        push_node(Kind::kList);
        break;
      case '}':
        push_node(Kind::kDict);
        break;
      case 0x8f:
        push_node(Kind::kSet);
        break;
      case 'a':
        append(Kind::kList, pop_count(1));
        break;
      case 'e':
        append_marked(Kind::kList);
        break;
      case 's':
        append(Kind::kDict, pop_count(2));
        break;
      case 'u':
        append_marked(Kind::kDict);
        break;
      case 0x90:
        append_marked(Kind::kSet);
        break;
      case 0x91: {
        auto items = pop_to_mark();
        push_node(Kind::kSet);
        append(Kind::kSet, std::move(items));
        break;
      }
      case 'q':
        memoize(read<uint8_t>());
        break;
      case 'r':
        memoize(read<uint32_t>());
        break;
      case 0x94:
        memoize(memo_.size());
        break;
      case 'h':
        recall(read<uint8_t>());
        break;
      case 'j':
        recall(read<uint32_t>());
        break;
      case 'c': {
        const std::string_view module = read_line();
        push_global(module, read_line());
        break;
      }
      case 0x93: {
        const auto names = pop_count(2);
        push_global(text_of(names[0]), text_of(names[1]));
        break;
      }
      case 'Q':
        push_storage(pop());
        break;
      case 'R': {
        const auto parts = pop_count(2);
        push(call(node_of(parts[0], Kind::kGlobal, "a function").name, arguments_of(parts[1])));
        break;
      }
      case 0x81: {
        // NEWOBJ: the way in which Python writes a named tuple; its class is a name to us.
        const auto parts = pop_count(2);
        push_named(node_of(parts[0], Kind::kGlobal, "a class").name, arguments_of(parts[1]));
        break;
      }
      case 'b':
        drop_state();
        break;
      default:
        throw Error("data.pkl uses the pickle opcode " + std::to_string(op) + ", which no plain value needs");
    }
    return true;
  }

  void append_marked(Kind kind) {
    auto items = pop_to_mark();
    append(kind, std::move(items));
  }

  void push_named(const std::string& type, const std::vector<Item>& items) {
    if (items.empty() || type.rfind("builtins.", 0) == 0) refuse_global(type);
    const auto node = push_node(Kind::kNamedTuple, type);
    for (const auto& item : items) adopt(*node, item);
  }

  // BUILD sets attributes of the object below: those of an OrderedDict or a tensor are Python's own
  // affair.
  void drop_state() {
    pop();
    const Item& target = top();
    const bool known = target.node ? target.node->kind == Kind::kDict : target.value.is<at::Tensor>();
    if (!known) throw Error("data.pkl sets attributes of an object that is no plain value");
  }

  // --- globals ---
  [[noreturn]] static void refuse_global(const std::string& name) {
    throw Error("holds the Python object '" + name + "': only tensors and plain values are read");
  }

  void push_global(std::string_view module, std::string_view name) {
    if (module == "__builtin__") module = "builtins";
    if (module == "torch") {
      if (const auto dtype = dtype_from_name(name)) return push_value(*dtype);
      if (const auto scheme = qscheme_from_name(name)) return push_value(*scheme);
    }
    if (module == "torch" || module == "torch._utils")
      if (const auto format = memory_format_from_name(name)) return push_value(*format);
    if (module == "builtins" && name == "Ellipsis") return push_value(Ellipsis{});
    charge_text(module.size() + name.size() + 1);
    push_node(Kind::kGlobal, std::string(module) + "." + std::string(name));
  }

  static const Node& node_of(const Item& item, Kind kind, const char* what) {
    if (!item.node || item.node->kind != kind)
      throw Error(std::string("data.pkl has something else where ") + what + " must be");
    return *item.node;
  }
  static const std::vector<Item>& arguments_of(const Item& item) {
    return node_of(item, Kind::kTuple, "a tuple of arguments").items;
  }
  template <class T>
  static const T& as(const Item& item, const char* what) {
    const T* value = item.node ? nullptr : item.value.get_if<T>();
    if (value == nullptr) throw Error(std::string("data.pkl has something else where ") + what + " must be");
    return *value;
  }
  static const std::string& text_of(const Item& item) { return as<std::string>(item, "a text"); }
  static int64_t int_of(const Item& item) { return as<int64_t>(item, "an integer"); }
  static const at::Tensor& tensor_of(const Item& item) { return as<at::Tensor>(item, "a tensor"); }
  static std::vector<int64_t> ints_of(const Item& item) {
    if (const auto* size = item.node ? nullptr : item.value.get_if<Size>()) return size->sizes;
    std::vector<int64_t> numbers;
    for (const auto& number : arguments_of(item)) numbers.push_back(int_of(number));
    return numbers;
  }
  static void require_count(const std::string& name, const std::vector<Item>& args, size_t least, size_t most) {
    if (args.size() < least || args.size() > most)
      throw Error("data.pkl calls '" + name + "' with " + std::to_string(args.size()) + " arguments");
  }

  // What Python would get from name(*args), for the few names that make plain values.
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
      // A subclass of Tensor, or a tensor with attributes: the tensor is what counts.
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
      Item named{Value(), std::make_shared<Node>(Kind::kNamedTuple, name)};
      for (const auto& item : arguments_of(args[0])) adopt(*named.node, item);
      return named;
    }
    if (name == "builtins.set" || name == "builtins.frozenset") {
      require_count(name, args, 1, 1);
      Item set{Value(), std::make_shared<Node>(Kind::kSet)};
      for (const auto& item : node_of(args[0], Kind::kList, "a list").items) adopt(*set.node, item);
      return set;
    }
    return {make_plain(name, args), nullptr};
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
    if (name == "builtins.slice") {
      require_count(name, args, 3, 3);
      auto parts = std::make_shared<Values>();
      for (const auto& part : args) parts->push_back(build(part));
      return Slice{std::move(parts)};
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
    Item dict{Value(), std::make_shared<Node>(Kind::kDict)};
    if (args.empty()) return dict;
    for (const auto& pair : node_of(args[0], Kind::kList, "a list of pairs").items) {
      const Node* node = pair.node.get();
      if (node == nullptr || (node->kind != Kind::kTuple && node->kind != Kind::kList) || node->items.size() != 2)
        throw Error("data.pkl has something else where a pair must be");
      for (const auto& item : node->items) adopt(*dict.node, item);
    }
    return dict;
  }

  static std::string latin1_bytes(const std::string& text) {
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

  // --- tensors ---
  void push_storage(const Item& persistent_id) {
    const auto& parts = arguments_of(persistent_id);
    if (parts.size() != 5 || text_of(parts[0]) != "storage")
      throw Error("data.pkl refers to something else than a storage");
    const std::string& type = node_of(parts[1], Kind::kGlobal, "a storage type").name;
    const auto dtype = dtype_of_storage(type);
    if (!dtype) throw Error("holds a storage of the type '" + type + "', which is not supported");
    const std::string& key = text_of(parts[2]);
    const at::Storage& storage = archive_.storage(key);
    const auto itemsize = static_cast<int64_t>(*dtype == at::ScalarType::Undefined ? 1 : c10::elementSize(*dtype));
    const int64_t numel = int_of(parts[4]);
    int64_t nbytes = 0;
    if (numel < 0 || __builtin_mul_overflow(numel, itemsize, &nbytes) ||
        static_cast<uint64_t>(nbytes) > storage.nbytes())
      throw Error("the storage '" + key + "' has " + std::to_string(storage.nbytes()) +
                  " bytes, fewer than data.pkl says");
    const auto node = push_node(Kind::kStorage);
    node->storage = storage;
    node->dtype = *dtype;
  }

  // args: storage, offset, size, stride, requires_grad, hooks, ...
  static at::Tensor rebuild_tensor(const Node& storage, at::ScalarType dtype, const std::vector<Item>& args,
                                   const Item* metadata) {
    const bool requires_grad = as<bool>(args[4], "requires_grad");
    const auto tensor = dense_tensor(storage.storage, dtype, int_of(args[1]), ints_of(args[2]), ints_of(args[3]));
    if (metadata != nullptr) set_metadata(tensor, *metadata);
    if (requires_grad) require_grad(tensor);
    return tensor;
  }

  static void set_metadata(const at::Tensor& tensor, const Item& metadata) {
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

  static at::Tensor rebuild_parameter(const at::Tensor& data, bool requires_grad) {
    // Another tensor on the same memory, as in Python: `data` itself may be in the tree, too.
    at::Tensor parameter = at::_ops::detach::call(data);
    if (requires_grad) require_grad(parameter);
    return parameter;
  }

  static at::Tensor rebuild_sparse(at::Layout layout, const std::vector<Item>& args) {
    if (layout == at::kSparse) {
      require_count("_rebuild_sparse_tensor", args, 3, 4);
      std::optional<bool> coalesced;
      if (args.size() == 4) coalesced = as<bool>(args[3], "is_coalesced");
      return sparse_coo_tensor(tensor_of(args[0]), tensor_of(args[1]), ints_of(args[2]), coalesced);
    }
    if (layout != at::kSparseCsr && layout != at::kSparseCsc && layout != at::kSparseBsr && layout != at::kSparseBsc)
      throw Error("a tensor of layout " + torch_name(layout) + " is not supported");
    require_count("_rebuild_sparse_tensor", args, 4, 4);
    return sparse_compressed_tensor(layout, tensor_of(args[0]), tensor_of(args[1]), tensor_of(args[2]),
                                    ints_of(args[3]));
  }

  // --- from nodes to values ---
  // Recursion is bounded by kMaxPthDepth. A node that lies in several places becomes one shared
  // value.
  Value build(const Item& item) {
    if (!item.node) return item.value;
    Node& node = *item.node;
    if (node.is_built) return node.built;
    if (node.kind == Kind::kGlobal) refuse_global(node.name);
    if (node.kind == Kind::kStorage) throw Error("holds a bare storage: only tensors and plain values are read");
    node.built = node.kind == Kind::kDict ? build_dict(node) : build_sequence(node);
    node.is_built = true;
    return node.built;
  }

  Value build_sequence(const Node& node) {
    auto items = std::make_shared<Values>();
    items->reserve(node.items.size());
    for (const auto& item : node.items) items->push_back(build(item));
    if (node.kind == Kind::kList) return List{std::move(items)};
    if (node.kind == Kind::kSet) return Set{std::move(items)};
    if (node.kind == Kind::kNamedTuple) return NamedTuple{std::move(items), node.name};
    return Tuple{std::move(items)};
  }

  Value build_dict(const Node& node) {
    std::vector<std::pair<Value, Value>> items;
    items.reserve(node.items.size() / 2);
    for (size_t i = 0; i + 1 < node.items.size(); i += 2)
      items.emplace_back(build(node.items[i]), build(node.items[i + 1]));
    if (items.size() == 1) {
      if (auto value = untag(items[0].first, items[0].second)) return std::move(*value);
    }
    return make_dict(std::move(items));
  }

  std::optional<Value> shared_tensor(const Value& reference) {
    if (shared_ == nullptr) throw Error("refers to bytes that it shares with other calls, which are not at hand");
    auto tensor = shared_->tensor(reference);
    return tensor ? std::optional<Value>(std::move(*tensor)) : std::nullopt;
  }

  // Turns the tagged dicts of our writer back. A dict that only looks like one stays a dict.
  std::optional<Value> untag(const Value& key, const Value& value) {
    const auto* tag = key.get_if<std::string>();
    if (tag == nullptr) return std::nullopt;
    if (*tag == SharedTensors::kTag && value.is<Dict>()) return shared_tensor(value);
    const auto* tuple = value.get_if<Tuple>();
    const size_t count = tuple == nullptr ? 0 : tuple->items->size();
    if (*tag == "__slice__" && count == 3) return Slice{tuple->items};
    if (*tag == "__ellipsis__" && value.is<bool>()) return Ellipsis{};
    if (*tag == "__memory_format__" && value.is<std::string>()) {
      const auto format = memory_format_from_name(*value.get_if<std::string>());
      if (format) return *format;
    }
    if (count != 2) return std::nullopt;
    const Value &first = (*tuple->items)[0], &second = (*tuple->items)[1];
    if (*tag == "__unsupported__" && first.is<std::string>() && second.is<std::string>())
      return Unsupported{*first.get_if<std::string>(), *second.get_if<std::string>()};
    if (*tag == "__generator__" && first.is<c10::Device>()) {
      const auto* state = second.get_if<at::Tensor>();
      const bool is_state =
          state != nullptr && state->scalar_type() == at::kByte && state->layout() == at::kStrided && state->dim() == 1;
      if (is_state || second.is<None>())
        return Generator{*first.get_if<c10::Device>(), is_state ? *state : at::Tensor()};
    }
    return std::nullopt;
  }

  std::string_view rest_;
  PthArchive& archive_;
  SharedTensors* shared_;
  uint64_t text_budget_;
  uint64_t item_count_ = 0;
  std::vector<Item> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Item> memo_;
};

}  // namespace

Value read_pth(std::string_view bytes, const std::string& name, std::shared_ptr<const void> owner,
               SharedTensors* shared) {
  try {
    PthArchive archive(bytes, std::move(owner));
    return Unpickler(archive.record("data.pkl"), archive, shared).run();
  } catch (const Error& error) {
    throw Error(name + ": " + error.what());
  } catch (const c10::Error& error) {
    throw Error(name + ": torch refuses what it holds: " + error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    throw Error(name + ": not enough memory to read it");
  }
}

Value read_pth(const std::string& path, SharedTensors* shared) {
  const FileSource file(path);
  FileSource::Stretch whole;
  try {
    whole = file.load(0, file.size());
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  }
  return read_pth(whole.bytes, path, whole.mapped ? whole.owner : nullptr, shared);
}

c10::Device recorded_device(const std::string& name) {
  const size_t colon = name.find(':');
  const std::string type = name.substr(0, colon);
  const bool plausible = !type.empty() && type.size() < 32 && std::all_of(type.begin(), type.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  try {
    if (plausible) return c10::Device(name);
  } catch (const c10::Error&) {
    try {
      return c10::Device("privateuseone" + (colon == std::string::npos ? std::string() : name.substr(colon)));
    } catch (const c10::Error&) {
    }
  }
  throw Error("holds the device '" + name.substr(0, 64) + "', which torch does not know");
}

}  // namespace op_tools
