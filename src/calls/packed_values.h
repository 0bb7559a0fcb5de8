// Private copies of the values of a call as one stretch of plain bytes. The program's thread packs: no tensor object
// and no tree is made for the copies, and nothing is allocated piece by piece. Another thread opens: it makes snapshots
// (snapshot.h) of them, in memory of its own. A small call costs what its memory misses cost, so there is one place to
// write and one to read.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "calls/snapshot.h"
#include "tensor/value.h"

namespace op_tools {

// What travels. Any thread may open or drop it.
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

// One thread at a time. What is put in is read in the same order.
class Packer {
 public:
  template <class T>
  void put(const T& plain) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&plain, sizeof plain);
  }
  void put_text(std::string_view text) {
    put(text.size());
    append(text.data(), text.size());
  }
  void put_value(const Value& value);  // no copy is made of its tensors: private ones only

  // One snapshot: its tree is put between begin() and end(), a value after the other; what is put by number (a tuple of
  // so many, a dict of so many keys and values) is followed by that many. The tensors must live, and stay what they
  // are, until fill(). Arguments as in take_snapshot(). `known`: the tensors of an earlier snapshot in order; the tree
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
  // left to finish(). Reading back what was just written in parts waits for all stores before it, and those of the
  // copies go to memory that is in no cache.
  void fill();
  // In the order of the tree; until the next begin().
  c10::ArrayRef<const at::Tensor*> tensors() const { return seen_; }

  Packed finish();  // nothing may be put any more

 private:
  struct Shown;
  class Copier;
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

  template <class T>
  T get() {
    T plain;
    std::memcpy(&plain, at_, sizeof plain);
    at_ += sizeof plain;
    return plain;
  }
  std::string_view text();
  Value value();
  // `root` as in take_snapshot(). `known`: what copies() gave of the snapshot whose tensors begin() was told.
  Snapshot snapshot(std::string_view root, const Values* known = nullptr);
  Values& copies() { return copies_; }  // of the last snapshot, by tensor: a tensor, or Unsupported

 private:
  Value tree();
  Values items(size_t count);
  const c10::Storage& storage(size_t memory);

  const Packed& packed_;
  const char* at_;
  std::vector<c10::Storage> storages_;  // made on first use
  Values copies_;
  const Values* known_ = nullptr;
};

}  // namespace op_tools
