// A private copy of the values of a call, taken in the program's thread before they change: everything that
// happens later (encoding, writing) works on the copy. CPU tensors, a single copy per storage, only the byte range that
// the tensors show; strides, aliasing, object identity, requires_grad, conj and neg bits stay. A value without a form
// in a file becomes Unsupported with a note.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "tensor/tensor_meta.h"
#include "tensor/value.h"

namespace op_tools {

struct Note {
  std::string where;  // args[1], kwargs.out, result[0]
  std::string type;
  std::string why;
  bool operator==(const Note&) const = default;
};

struct Snapshot {
  Value value;
  std::vector<TensorMeta> tensors;  // by tensor index (for_each_tensor order of the original)
  // Tensors whose strides span far more memory than their elements are stored contiguous: (tensor index, strides).
  std::vector<std::pair<size_t, std::vector<int64_t>>> restrided;
  std::vector<Note> unsupported;
  size_t bytes = 0;  // memory that the copies hold
};

// `root`: how `where` of a note begins ("" for a dict of args and kwargs, "result"). `owned`: the tensors are private
// already, CPU ones are taken without a copy. `restride`: wide strides are given up (Snapshot::restrided); false: they
// stay. Throws c10::Error when a device copy fails.
OP_TOOLS_API Snapshot take_snapshot(const Value& value, const std::string& root, bool owned = false,
                                    bool restride = true);

// Where in the tree the values without a form in a file are, in words.
void note_unsupported(const Value& value, const std::string& where, std::vector<Note>& notes);

}  // namespace op_tools
