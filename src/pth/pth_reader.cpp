#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <unordered_map>

#include "base/error.h"
#include "pth/content_store.h"
#include "pth/pickle_globals.h"
#include "pth/pickle_node.h"
#include "pth/pth.h"
#include "pth/pth_archive.h"
#include "pth/zip.h"

namespace op_tools {
namespace {

using pickled::Item;
using pickled::Kind;
using pickled::Node;

// Runs a pickle. It builds plain values and tensors only; the meaning of globals is in pickle_globals.h.
class Unpickler {
 public:
  // `shared`: the tensors whose bytes lie in other files; nullptr: their tagged dicts are refused.
  Unpickler(std::string_view pickle, PthArchive& archive, ContentReader* shared)
      : rest_(pickle), archive_(archive), shared_(shared), text_budget_(16 * pickle.size() + (1 << 20)) {}

  Value run() {
    if (read<uint8_t>() != kProto) throw Error("data.pkl does not start as a pickle of protocol 2 to 5 does");
    const int protocol = read<uint8_t>();
    if (protocol < 2 || protocol > 5) throw Error("data.pkl has pickle protocol " + std::to_string(protocol));
    while (step(read<uint8_t>())) {
    }
    const Item result = pop();
    if (!stack_.empty() || !marks_.empty() || !rest_.empty()) throw Error("data.pkl holds several values");
    return build(result);
  }

 private:
  static constexpr uint8_t kProto = 0x80;
  // Values made. Far above real calls; bounds the cost of a hostile file.
  static constexpr uint64_t kMaxItems = uint64_t{1} << 22;

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
  void push_node(Kind kind) { push(pickled::new_node(kind)); }
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
  void push_tuple(std::vector<Item> items) {
    Item tuple = pickled::new_node(Kind::kTuple);
    for (auto& item : items) pickled::adopt(*tuple.node, std::move(item));
    push(std::move(tuple));
  }
  void append(Kind kind, std::vector<Item> items) {
    const auto node = top().node;
    if (!node || node->kind != kind) throw Error("data.pkl appends to a value that is no container for it");
    if (kind == Kind::kDict && items.size() % 2 != 0) throw Error("data.pkl has a key without a value");
    for (auto& item : items) pickled::adopt(*node, std::move(item));
  }

  void memoize(uint64_t id) {
    if (++item_count_ > kMaxItems) throw Error("data.pkl holds more than " + std::to_string(kMaxItems) + " values");
    const Item& item = top();
    if (const auto* text = item.value.get_if<std::string>()) charge_text(text->size());
    if (const auto* bytes = item.value.get_if<Bytes>()) charge_text(bytes->bytes.size());
    memo_[id] = item;
  }
  void recall(uint64_t id) {
    const auto entry = memo_.find(id);
    if (entry == memo_.end()) throw Error("data.pkl refers to memo " + std::to_string(id) + ", which it never set");
    push(entry->second);
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

  // An opcode; false after STOP.
  bool step(uint8_t op) {
    if (op == '.') return false;
    if (push_scalar(op) || build_container(op) || use_memo(op) || call_python(op)) return true;
    switch (op) {
      case 0x95:
        read<uint64_t>();
        return true;  // FRAME: only a hint
      case '(':
        if (++item_count_ > kMaxItems) throw Error("data.pkl sets too many marks");
        marks_.push_back(stack_.size());
        return true;
      default:
        throw Error("data.pkl uses the pickle opcode " + std::to_string(op) + ", which no plain value needs");
    }
  }

  // The opcodes by their effect; each of these returns false for an opcode of another family.
  bool push_scalar(uint8_t op) {
    switch (op) {
      case 'N':
        push_value(None{});
        return true;
      case 0x88:
        push_value(true);
        return true;
      case 0x89:
        push_value(false);
        return true;
      case 'K':
        push_value(int64_t{read<uint8_t>()});
        return true;
      case 'M':
        push_value(int64_t{read<uint16_t>()});
        return true;
      case 'J':
        push_value(int64_t{read<int32_t>()});
        return true;
      case 0x8a:
        push_long(take(read<uint8_t>()));
        return true;
      case 0x8b:
        push_long(take(read<uint32_t>()));
        return true;
      case 'G':
        push_float();
        return true;
      default:
        return push_string(op);
    }
  }

  bool push_string(uint8_t op) {
    switch (op) {
      case 'X':
        push_text(read<uint32_t>());
        return true;
      case 0x8c:
        push_text(read<uint8_t>());
        return true;
      case 0x8d:
        push_text(read<uint64_t>());
        return true;
      case 'C':
        push_bytes(read<uint8_t>());
        return true;
      case 'B':
        push_bytes(read<uint32_t>());
        return true;
      case 0x8e:
      case 0x96:
        push_bytes(read<uint64_t>());
        return true;
      default:
        return false;
    }
  }

  bool build_container(uint8_t op) {
    switch (op) {
      case ')':
        push_tuple({});
        return true;
      case 't':
        push_tuple(pop_to_mark());
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        push_tuple(pop_count(size_t{op} - 0x84));
        return true;
      case ']':
        push_node(Kind::kList);
        return true;
      case '}':
        push_node(Kind::kDict);
        return true;
      case 0x8f:
        push_node(Kind::kSet);
        return true;
      case 'a':
        append(Kind::kList, pop_count(1));
        return true;
      case 'e':
        append_marked(Kind::kList);
        return true;
      case 's':
        append(Kind::kDict, pop_count(2));
        return true;
      case 'u':
        append_marked(Kind::kDict);
        return true;
      case 0x90:
        append_marked(Kind::kSet);
        return true;
      case 0x91: {
        auto items = pop_to_mark();
        push_node(Kind::kSet);
        append(Kind::kSet, std::move(items));
        return true;
      }
      default:
        return false;
    }
  }

  bool use_memo(uint8_t op) {
    switch (op) {
      case 'q':
        memoize(read<uint8_t>());
        return true;
      case 'r':
        memoize(read<uint32_t>());
        return true;
      case 0x94:
        memoize(memo_.size());
        return true;
      case 'h':
        recall(read<uint8_t>());
        return true;
      case 'j':
        recall(read<uint32_t>());
        return true;
      default:
        return false;
    }
  }

  // Names of Python, and calls that a Python would make: only the few that pickled:: knows.
  bool call_python(uint8_t op) {
    switch (op) {
      case 'c': {
        const std::string_view module = read_line();
        push_global(module, read_line());
        return true;
      }
      case 0x93: {
        const auto names = pop_count(2);
        push_global(pickled::text_of(names[0]), pickled::text_of(names[1]));
        return true;
      }
      case 'Q':
        push(pickled::storage_of(pop(), archive_));
        return true;
      case 'R': {
        const auto parts = pop_count(2);
        push(pickled::call(pickled::node_of(parts[0], Kind::kGlobal, "a function").name,
                           pickled::arguments_of(parts[1])));
        return true;
      }
      case 0x81: {
        // NEWOBJ: the way in which Python writes a named tuple; its class is a name to us.
        const auto parts = pop_count(2);
        push_named(pickled::node_of(parts[0], Kind::kGlobal, "a class").name, pickled::arguments_of(parts[1]));
        return true;
      }
      case 'b':
        drop_state();
        return true;
      default:
        return false;
    }
  }

  void append_marked(Kind kind) {
    auto items = pop_to_mark();
    append(kind, std::move(items));
  }

  void push_global(std::string_view module, std::string_view name) {
    charge_text(module.size() + name.size() + 1);
    push(pickled::global_named(module, name));
  }

  void push_named(const std::string& type, const std::vector<Item>& items) {
    if (items.empty() || type.rfind("builtins.", 0) == 0) pickled::refuse_global(type);
    Item named = pickled::new_node(Kind::kNamedTuple, type);
    for (const auto& item : items) pickled::adopt(*named.node, item);
    push(std::move(named));
  }

  // BUILD sets attributes of the object below: those of an OrderedDict or a tensor are Python's own
  // affair.
  void drop_state() {
    pop();
    const Item& target = top();
    const bool known = target.node ? target.node->kind == Kind::kDict : target.value.is<at::Tensor>();
    if (!known) throw Error("data.pkl sets attributes of an object that is no plain value");
  }

  // --- from nodes to values ---
  // Recursion is bounded by kMaxPthDepth. A node that lies in several places becomes a single shared
  // value.
  Value build(const Item& item) {
    if (!item.node) return item.value;
    Node& node = *item.node;
    if (node.is_built) return node.built;
    if (node.kind == Kind::kGlobal) pickled::refuse_global(node.name);
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
    if (node.kind == Kind::kSlice) return Slice{std::move(items)};
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

  // Turns the tagged dicts of our writer back. A dict that only looks like a tagged dict stays a dict.
  std::optional<Value> untag(const Value& key, const Value& value) {
    const auto* tag = key.get_if<std::string>();
    if (tag == nullptr) return std::nullopt;
    if (*tag == ContentReader::kTag && value.is<Dict>()) return shared_tensor(value);
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
    if (*tag == "__namedtuple__" && first.is<std::string>() && second.is<Tuple>())
      return NamedTuple{second.get_if<Tuple>()->items, *first.get_if<std::string>()};
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
  ContentReader* shared_;
  uint64_t text_budget_;
  uint64_t item_count_ = 0;
  std::vector<Item> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Item> memo_;
};

}  // namespace

Value read_pth(std::string_view bytes, const std::string& name, std::shared_ptr<const void> owner,
               ContentReader* shared) {
  try {
    PthArchive archive(bytes, std::move(owner));
    return Unpickler(archive.record("data.pkl"), archive, shared).run();
  } catch (const Error& error) {
    throw Error(name + ": " + error.what());
  } catch (const c10::Error& error) {
    throw Error(name + ": torch refuses its contents: " + error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    throw Error(name + ": not enough memory to read it");
  }
}

Value read_pth(const std::string& path, ContentReader* shared, Links links) {
  const FileSource file(path, links);
  FileSource::Range whole;
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
