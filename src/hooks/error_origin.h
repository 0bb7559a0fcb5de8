// Errors of calls that the operator did not cause, recognised by their text: OpCall::error, and "error" in meta.json.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace op_tools {

template <size_t kCount>
bool has_any_of(std::string_view error, const std::string_view (&parts)[kCount]) {
  return std::any_of(std::begin(parts), std::end(parts),
                     [&](std::string_view part) { return error.find(part) != std::string_view::npos; });
}

// Code of the program that runs inside of operators, a hook for saved tensors, raised. torch.utils.checkpoint ends its
// recomputation in this way as soon as it has the tensors it needs.
inline constexpr std::string_view kEndedByProgram = "ended by the program: ";

inline bool is_ended_by_program(std::string_view error) {
  return error.starts_with(kEndedByProgram);
}

inline std::string ended_by_program(std::string_view error) {
  return std::string(kEndedByProgram).append(error);
}

// The device has no kernel of the operator: the text of c10::NotImplementedError.
inline bool lacks_kernel(std::string_view error) {
  return error.find("Could not run '") != std::string_view::npos && error.find("backend") != std::string_view::npos;
}

// The CPU refused an index among the elements of the inputs. Devices that look at none of them return something.
inline bool is_index_out_of_range(std::string_view error) {
  constexpr std::string_view kRefusals[] = {"out of range", "out of bounds", "out of DATA bounds"};
  return has_any_of(error, kRefusals);
}

// Autograd refused the program's use of its tensors (writes a leaf or a view in place, records inference
// tensors), or vmap refused an operator that draws random numbers. A run of the call on copies of its inputs has no
// leaf, no view, no tangent and no transform, so it returns.
inline bool is_refused_by_autograd_or_vmap(std::string_view error) {
  constexpr std::string_view kRefusals[] = {
      "being used in an in-place operation",                // a leaf, a view of a leaf
      "is being modified inplace",                          // a view of several, of a custom function, of another mode
      "Inplace update to inference tensor",                 //
      "Inference tensors cannot be saved for backward",     //
      "arguments don't support automatic differentiation",  // out=
      "does not support automatic differentiation for",     // a complex result
      "Trying to use forward AD with",                      // a formula that there is not
      "modified by an inplace operation",                   // tensors that an earlier call saved
      "a second time",                                      // the graph was freed
      "Can't detach views in-place",                        //
      "Setting requires_grad=True on inference tensor",     //
      "change requires_grad flags of leaf variables",       //
      "vmap: ",
  };
  return has_any_of(error, kRefusals);
}

// Torch refused the devices of the call's tensors: they do not go together (`several`: they are on several), or the
// call takes tensors of the CPU alone. A run of the call has all of them in a single place, or on the CPU, so it
// returns.
inline bool is_refused_for_devices(std::string_view error, bool several) {
  constexpr std::string_view kOnCpuAlone[] = {
      "copy the tensor to host memory first",  // numpy
      "only dense CPU tensors can be pinned",  //
      "to be on cpu",                          // tensor_split
      "should be a 1D CPU int64 tensor",       // pack_padded_sequence
  };
  constexpr std::string_view kTogether[] = {
      "same device",                     // most operators
      "two devices",                     //
      "different device",                //
      "expected device",                 //
      "device type",                     // attention; generators
      "to be on GPU",                    // operators of CUDA that look by themselves
      "incompatible tensor type",        // x.data = y
      "should be the same",              // the types of input and weight in convolutions
      "cannot be accessed from Triton",  // a tensor of the CPU
  };
  return has_any_of(error, kOnCpuAlone) || (several && !lacks_kernel(error) && has_any_of(error, kTogether));
}

}  // namespace op_tools
