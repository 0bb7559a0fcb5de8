// Facts about operators by their names: a single table. A row is a family of operators: exact names, a trait of
// them, and why. Nothing else in op_tools decides by an operator's name. Where torch itself knows (schemas, tags) or
// the effect can be seen (a generator that moved, a version counter), that is asked before this table.
//
// Names are base names, so that both levels share a row: aten::max.dim, torch.max and torch.Tensor.max are "max".
// tests/data/op_traits.txt lists which operators and functions of torch each row matches. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "tensor/value.h"

namespace c10 {
class OperatorHandle;
}

namespace op_tools {

enum class OpTrait : uint8_t {
  kDrawsRandomNumbers,       // every call draws
  kDrawsInTraining,          // a call draws when its arguments say so: see draws_random_numbers()
  kUninitializedResult,      // the results are memory with undefined values
  kShowsUnwrittenMemory,     // a result may show memory that was never written
  kShowsStorage,             // the result shows a storage, which no operator may have written yet
  kChangesInPlace,           // makes new elements of the old ones, in place
  kGivesData,                // values come from the program, not from other tensors
  kWorkspaceResult,          // the result at `place` is scratch memory
  kOpenResult,               // results from `place` on are for the operator's own backward: each backend has its own
  kTakesWorkspace,           // an input of bytes is the scratch memory of its forward operator
  kResultOnCpu,              // the result at `place` is on the CPU, wherever the inputs are
  kBackendPicksStrides,      // the strides of the results are the backend's choice
  kAsksAboutDevice,          // the answer differs on another device
  kUnorderedResult,          // the order of the results is not defined
  kSignAmbiguous,            // vectors known up to sign or phase; the product of the first `place` results is the input
  kReturnsIndices,           // an integer result names elements of the first argument, along `place`, a dimension
  kNamesEachOnce,            // of those: each element once
  kNamesEarlier,             // of those: the element at the result's own place, or one before it
  kOrdersOnRequest,          // the results have an order, unless the argument `sorted` at `place` is False
  kMixesElements,            // each element of the result is a sum over elements, and may be much smaller than these
  kSumsProducts,             // each element of the result is a sum over products of two inputs
  kByCudnn,                  // on CUDA computed by cuDNN, which has its own switch for TF32
  kApproximatedByCudnn,      // cuDNN approximates a function that the CPU computes to the last bits
  kHasFirstDtype,            // the result has the dtype of the first argument, whatever the others have
  kForwardMode,              // joins tangents to tensors or takes them off
  kLikeFactory,              // a factory that takes sizes and dtype from a tensor
  kReadsValue,               // hands a tensor's value to the program
  kChangesMemory,            // changes a tensor's memory or its place, not its numbers
  kUndeclaredView,           // gives a view, though its schema does not say so
  kShowsElements,            // a function that mostly gives a view, of no operator's name
  kTakesCpuTensors,          // indices or lengths may be on the CPU
  kDeviceKernelOfComposite,  // composite on the CPU; devices have a kernel for it
  kWritesFirstArgument,      // Python's in-place forms whose names do not end with a single underscore
  kStepsByDtype,             // the result is a step between numbers of the dtype: another step in another dtype
  kBetweenTwoRanks,          // takes a process group, but not all of its ranks call it
  kGivesAllRanksTheSame,     // a collective whose results are equal on all ranks of its group
  kJumps,                    // a small change of an input may change an element of the result by as much as its size
  kGivesIntegers,            // a quotient without its fraction: see rounds_to_integers()
  kDivides,                  // by its last input from `place` on (on lists: of the result's shape)
  kAddsTerm,                 // the first input and a term, which is no larger than input and result together
  kStepsParameters,          // an optimizer's step over lists: parameter i is made of the items i
  kExponentiates,            // the result is made of exponentials of the inputs
  kGradientJumps,            // the same of its gradient: a choice, or a formula with a step
  kNormalizes,               // the common part of its inputs is taken out: its gradient, too, is a remainder
  kNormalizesBatch,          // over all of its first input but the second dimension
  kMultiplies,               // elements by elements, or a single element: nothing is added up that could cancel
  kAddsProduct,              // a product or quotient is added, in a single rounding (FMA) or in two
  kDistance,                 // how far apart its inputs are: a result smaller than its rounding says nothing
  kSelects,                  // the elements of the result are elements of the inputs: nothing is rounded
  kNeedsNoRounding,          // its exact result is a number of the dtype: each device gives the same elements
  kMoves,                    // gives the tensor on another device, or in another dtype
  kReadsMetadata,            // see is_metadata_op()
  kOpensFile,                // by the name that it is given
  kKeepsNumbers,             // the same numbers for another graph, device or object: no kernel computes them
  kTakesPositive,            // the argument at `place` is positive where the result is to be a number
  kTakesDivisor,             // the argument at `place`, which is not to be zero
  kTakesIndices,             // along a dimension, in the argument at `place`
  kNeedsCpuTensors,          // the tensors behind the first are on the CPU, whatever the device
  kHasDefaultByDtype,        // an argument that is left out has a value that depends on the dtype: see open_arguments()
  kReadsStorageOffset,       // its result depends on the place of a tensor in its storage
  kRoundsNearOne,            // on its way a number of about one, or as large as the input at `place`
  kGradientReadsResult,      // its formula has the result, whose rounding it multiplies (tanh: 1 - result^2)
  kRunsUnasked,              // torch's own C++ code runs it, for a storage that is saved or parameters that ranks share
  kOnDefaultDevice,          // makes a tensor on torch's default device where its call names none
};

struct OpFamily {
  OpTrait trait;
  std::string_view why;    // the reason in messages where the trait decides
  std::string_view names;  // base names, separated by spaces
  int place = -1;          // of a result or an argument, for the traits that need a place
};

OP_TOOLS_API std::span<const OpFamily> op_families();
OP_TOOLS_API std::string_view trait_name(OpTrait trait);      // "draws_random_numbers"
OP_TOOLS_API OpTrait trait_from_name(std::string_view name);  // Error for another name

// The row that says it; nullptr: none.
OP_TOOLS_API const OpFamily* family_of(std::string_view base_name, OpTrait trait);
inline bool has_trait(std::string_view base_name, OpTrait trait) {
  return family_of(base_name, trait) != nullptr;
}

// aten::add_.Tensor -> add_, torch.nn.functional.linear -> linear, torch.Tensor.real.__get__ -> real,
// torch.ops.aten.add.Tensor -> add
OP_TOOLS_API std::string_view base_name(std::string_view op_name);
// An operator or a function of torch's, not of another library.
OP_TOOLS_API bool is_torchs_own(std::string_view op_name);
// ADD_ and LINEAR, as they stand in the names of environment variables.
OP_TOOLS_API std::string capital_base_name(std::string_view op_name);

// A call that answers a question about a tensor (or about dtypes and devices) or wires autograd, and neither computes,
// moves, aliases nor reads elements: torch.Tensor.size, torch.Tensor.shape.__get__, aten::is_same_size. Left out unless
// a filter names it. By the full name, as operators of another library may have the same base name.
OP_TOOLS_API bool is_metadata_op(std::string_view op_name);

// Flags of a process: CUDA rounds the factors of float32 products to TF32's 10 bits of mantissa, in cuDNN's operators,
// and in products of matrices.
struct Tf32Flags {
  bool cudnn = false, matmul = false;
};
OP_TOOLS_API bool multiplies_in_tf32(std::string_view base_name, Tf32Flags flags);

// By its name and arguments, the call draws random numbers. Only for calls whose generators cannot be watched: a
// generator that moved says it for any call.
OP_TOOLS_API bool draws_random_numbers(std::string_view base_name, const Value& args, const Value& kwargs);

// An argument that a call leaves to a default which depends on the dtype of its first tensor.
struct OpenArgument {
  enum class Default : uint8_t {
    kEpsilon,           // of the dtype in which the operator computes: float32 for 16-bit floats
    kEpsilonTimesSize,  // of the dtype, times the larger of the matrix's two sizes
    kLargest,           // the largest number of the dtype
    kLowest,            // its negative
  };
  std::string_view name;
  size_t position;  // among the positional parameters; a keyword where the call gives fewer
  Default value;
};
// Of torch's own operators only, hence by the full name: another library's of the same name has other parameters.
OP_TOOLS_API std::vector<OpenArgument> open_arguments(std::string_view op_name, const Value& args, const Value& kwargs);

OP_TOOLS_API bool returns_uninitialized(std::string_view base_name);
// The place of a result that is scratch memory, whose padding is never written; -1: none.
OP_TOOLS_API int workspace_of(std::string_view base_name);
// The result at `place` is the backend's own matter: for its own backward, or not asked for by the call.
OP_TOOLS_API bool is_open_result(std::string_view base_name, int place, const Value& args, const Value& kwargs);
// The exact results are integers, whatever the dtype: floor_divide, div with a rounding mode.
OP_TOOLS_API bool rounds_to_integers(std::string_view base_name, const Value& kwargs);
OP_TOOLS_API bool backend_picks_strides(std::string_view base_name);
OP_TOOLS_API bool asks_about_device(std::string_view base_name);
OP_TOOLS_API bool returns_unordered(std::string_view base_name);
OP_TOOLS_API bool is_sign_ambiguous(std::string_view base_name);
OP_TOOLS_API bool returns_indices(std::string_view base_name);

// Other processes take part in it. By the namespace of the full name: c10d::allreduce_,
// torch.distributed.distributed_c10d.all_reduce.
OP_TOOLS_API bool is_collective(std::string_view op_name);

// An operator of torch's on lists of tensors: aten::_foreach_add_.List. A list without an end, known by torch's
// prefix.
OP_TOOLS_API bool is_foreach(std::string_view base_name);

// A factory (rand, ones_like): torch makes a variable of its result, afterwards. The program gets that tensor as
// long as nothing else holds it, or its counter of versions; else a copy, which torch.jit.trace does not know.
OP_TOOLS_API bool makes_variable(const c10::OperatorHandle& op);

// About how many elements go into an element of the result.
OP_TOOLS_API int64_t reduced_elements(std::string_view base_name, const std::vector<at::Tensor>& inputs,
                                      const at::Tensor& result);

}  // namespace op_tools
