// The keys by which calls of two recordings are known to be the same: 64 bits, each vaguer than its predecessor. Pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

// By number of the call.
struct CallKeys {
  std::vector<uint64_t> exact;  // operator, and the bits of all its tensors; 0: they are too few to tell calls apart
  std::vector<uint64_t>
      placed;                   // operator, shapes, kinds of dtypes, module, how often it was called before, parameters
  std::vector<uint64_t> plain;  // operator, shapes, kinds of dtypes
  std::vector<uint64_t> loose;  // operator
};
OP_TOOLS_API CallKeys call_keys(const Recording& run);

// The result of a value's maker, that its tensor was at first; nullptr: the maker is not known. Memory that is read
// again after a write, or seen in another form, is another value of the same maker.
OP_TOOLS_API const RecordedUse* made_as(const Recording& run, const RecordedValue& value);
// That result, where the value of this number is another of the same maker; else nullptr.
OP_TOOLS_API const RecordedUse* first_made_as(const Recording& run, uint32_t value);

// By number of the value: it shows memory that was never written (torch.empty and its views), so it has the bits from
// before.
OP_TOOLS_API std::vector<bool> unwritten_values(const Recording& run);

// By number of the value: the value that it is a copy of, on another device or where a program for devices asks for its
// own (`.cpu()`, `.to(device)`); else itself. Such a copy computes nothing; a result that has other elements is no
// copy.
OP_TOOLS_API std::vector<uint32_t> moved_from(const Recording& run);
// The call asks for such a copy: of a single tensor, in its shape and dtype. Its elements may be others.
OP_TOOLS_API bool is_moved_copy(const Recording& run, const RecordedCall& call);
// The call makes nothing but such copies.
OP_TOOLS_API bool only_moves(const Recording& run, const RecordedCall& call);

// The operator without namespace, overload and the mark of its in-place form: aten::add_.Tensor, torch.add -> add
OP_TOOLS_API std::string_view plain_name(std::string_view op);

enum class DtypeClass : uint8_t { kFloating, kComplex, kInteger, kBool, kOther };
OP_TOOLS_API DtypeClass dtype_class(c10::ScalarType dtype);

}  // namespace op_tools
