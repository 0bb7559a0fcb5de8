// Private copies of the values of a call as a block of plain bytes. The program's thread packs: no tensor object
// and no tree is made for the copies, and nothing is allocated piece by piece. Another thread unpacks: it makes
// snapshots (snapshot.h) of them, in its own memory. A small call costs what its memory misses cost, so there is a
// single place to write and another to read.
//
// What is packed is a sequence of snapshots and of records. A record is a struct that names its fields once, for both
// sides (and for JSON, call_meta.h):
//   template <class Self, class Visit> static void fields(Self& self, Visit&& visit) { visit("name", self.name); ... }
// A field is plain data, a string, a list of plain data, a Value without tensors, or a record itself. Before each
// record and snapshot stands a number made of its field types: to unpack other fields than were packed, or more,
// or less, is an Error.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "base/error.h"
#include "calls/snapshot.h"
#include "tensor/value.h"

namespace op_tools {

template <class T>
concept PackedRecord = requires(T& record) {
  T::fields(record, [](const char*, auto&) {});
};
template <class T>
concept PackedPlain = std::is_trivially_copyable_v<T> && !std::is_same_v<T, std::string_view> && !PackedRecord<T>;

// The number of a record: of its type and of the types and order of its fields.
template <PackedRecord T>
uint32_t layout_number() {
  static const uint32_t number = [] {
    uint32_t hash = 2166136261u;
    const auto mix = [&hash](std::string_view text) {
      for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
    };
    mix(typeid(T).name());
    const T record{};
    T::fields(record, [&](const char*, const auto& field) { mix(typeid(field).name()); });
    return hash;
  }();
  return number;
}
constexpr uint32_t kSnapshotNumber = 0x736e6170;

struct PackedEntry;  // packed_form.h

// The bytes that travel. Any thread may open or drop it.
class Packed {
 public:
  Packed() = default;
  Packed(Packed&& other) noexcept
      : flat_(std::move(other.flat_)),
        memories_(std::exchange(other.memories_, 0)),
        size_(other.size_),
        tensors_(std::move(other.tensors_)),
        others_(std::move(other.others_)) {}
  Packed& operator=(Packed&&) = delete;
  ~Packed();

  // Objects that the packing thread made are in it besides the bytes: better freed by that thread.
  bool has_objects() const { return !tensors_.empty() || !others_.empty(); }
  size_t size() const { return size_; }  // of the bytes, without the copies of tensors

 private:
  friend class Packer;
  friend class Unpacker;
  struct Memory {  // of a storage's copy
    c10::DataPtr data;
    size_t size;
  };
  Memory* memories() const { return static_cast<Memory*>(flat_.get()); }

  c10::DataPtr flat_;                // memories, then bytes
  size_t memories_ = 0;              // how many
  size_t size_ = 0;                  // of the bytes
  std::vector<at::Tensor> tensors_;  // copies that are tensors already: from devices, sparse, large private ones
  std::vector<Value> others_;        // values without tensors that have no form in the bytes
};

// One thread at a time. Values are read in the order in which they were put in.
class Packer {
 public:
  template <PackedRecord T>
  void put(const T& record) {
    put_plain(layout_number<T>());
    put_field(record);
  }

  // A snapshot: its tree is put between begin() and end(), a value after the other; a value that is put by number (a
  // tuple of N items, a dict of N keys and values) is followed by N items. The tensors must live, and stay unchanged,
  // until fill(). Arguments as in take_snapshot(). `known`: the tensors of an earlier snapshot in order; the tree
  // refers to their copies.
  void begin(bool owned = false, bool restride = true, c10::ArrayRef<const at::Tensor*> known = {});
  void tree(const Value& value);  // not of a value that is gone before fill(): its tensors may be gone with it
  void tree_tuple(size_t count);
  void tree_dict(size_t count);
  void tree_int(int64_t number);
  void tree_tensor(const at::Tensor& tensor);
  struct Made {
    size_t bytes = 0;        // memory that the copies hold
    size_t unsupported = 0;  // values that have no form in a file
  };
  Made end();
  // Copies the bytes of CPU tensors: to be called before the program goes on, but after all that is small was put, or
  // left to finish(). Reading back bytes that were just written in parts waits for all stores before it, and those of
  // the copies go to memory that is in no cache.
  void fill();
  // In the order of the tree; until the next begin().
  c10::ArrayRef<const at::Tensor*> tensors() const { return seen_; }

  Packed finish();  // nothing may be put any more

 private:
  struct Shown;
  class Copier;
  template <class T>
  void put_field(const T& field) {
    if constexpr (PackedRecord<T>) {
      T::fields(field, [this](const char*, const auto& part) { put_field(part); });
    } else if constexpr (PackedPlain<T>) {
      put_plain(field);
    } else if constexpr (std::is_same_v<T, Value>) {
      put_value(field);
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      put_text(field);
    } else {
      static_assert(PackedPlain<typename T::value_type>);
      put_plain(static_cast<uint32_t>(field.size()));
      append(field.data(), field.size() * sizeof(typename T::value_type));
    }
  }
  template <PackedPlain T>
  void put_plain(const T& plain) {
    append(&plain, sizeof plain);
  }
  void put_text(std::string_view text) {
    put_plain(text.size());
    append(text.data(), text.size());
  }
  void put_value(const Value& value);  // no copy is made of its tensors: private ones only
  void append(const void* from, size_t size) {
    const size_t at = bytes_.size();
    bytes_.resize_for_overwrite(at + size);
    std::memcpy(bytes_.data() + at, from, size);
  }
  void tree_items(const Values& items);
  void tree_other(const Value& value);

  c10::SmallVector<char, 2048> bytes_;
  c10::SmallVector<Packed::Memory, 8> memories_;
  struct Unfilled {
    void* to;
    const void* from;
    size_t size;
  };
  c10::SmallVector<Unfilled, 8> unfilled_;
  std::vector<at::Tensor> tensors_;
  std::vector<Value> others_;

  // Of the snapshot that is being put.
  bool owned_ = false, restride_ = true;
  c10::SmallVector<const at::Tensor*, 8> known_, seen_;
  size_t tree_at_ = 0;
  size_t unsupported_ = 0;
};

class Unpacker {
 public:
  explicit Unpacker(const Packed& packed);  // must live as long as this; opened once: the copies move out of it

  // The next record. Its string_views point into the packed bytes.
  template <PackedRecord T>
  T get() {
    expect(layout_number<T>(), typeid(T).name());
    T record{};
    get_field(record);
    return record;
  }
  // The next snapshot. `root` as in take_snapshot(). `known`: the copies() of the snapshot whose tensors were
  // given to begin().
  Snapshot snapshot(std::string_view root, const Values* known = nullptr);
  Values& copies() { return copies_; }  // of the last snapshot, by tensor: a tensor, or Unsupported
  // Nothing may be left: Error when something is.
  void finish() const;

 private:
  // The next `size` bytes; Error when there are fewer.
  const char* take(size_t size) {
    if (size > static_cast<size_t>(end_ - at_)) fail_at_end();
    return std::exchange(at_, at_ + size);
  }
  template <PackedPlain T>
  T plain() {
    T plain;
    std::memcpy(static_cast<void*>(&plain), take(sizeof plain), sizeof plain);
    return plain;
  }
  template <class T>
  void get_field(T& field) {
    if constexpr (PackedRecord<T>) {
      T::fields(field, [this](const char*, auto& part) { get_field(part); });
    } else if constexpr (PackedPlain<T>) {
      std::memcpy(static_cast<void*>(&field), take(sizeof field), sizeof field);
    } else if constexpr (std::is_same_v<T, Value>) {
      field = value();
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      field = text();
    } else {
      const auto count = plain<uint32_t>();
      const char* const items = take(count * sizeof(typename T::value_type));
      field.resize(count);
      std::memcpy(static_cast<void*>(field.data()), items, count * sizeof(typename T::value_type));
    }
  }
  std::string_view text();
  Value value();
  void expect(uint32_t number, const char* expected);
  [[noreturn]] static void fail_at_end();
  Value tree();
  Values items(size_t count);
  at::Tensor copy_of(const PackedEntry& entry, const TensorMeta& meta);
  const c10::Storage& storage(size_t memory);

  const Packed& packed_;
  const char* at_;
  const char* end_;
  std::vector<c10::Storage> storages_;  // made on first use
  Values copies_;
  const Values* known_ = nullptr;
};

}  // namespace op_tools
