// The sets of dispatch keys that op_tools excludes from a thread, looks for in a call, or looks for in a tensor. A
// single list each, so that a key that torch adds has a single place to go. Constants only.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace op_tools {

// The dispatch key that the aten-level interceptor is registered on: above autograd, without a meaning in torch, and
// registered on by nothing there.
inline constexpr c10::DispatchKey kInterceptorKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Functorch's transforms and their layers (torch.vmap, torch.func.jacrev).
inline constexpr c10::DispatchKeySet kFunctorchKeys =
    c10::functorch_transforms_ks | c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                        c10::DispatchKey::FuncTorchDynamicLayerBackMode});

// Modes, transforms and tracers: all that is above autograd and sees the program's operators, us included. Operators
// of ours that are not hidden from them are vmapped, functionalised, traced into the program's graph, or captured.
inline constexpr c10::DispatchKeySet kModeKeys =
    kFunctorchKeys | c10::python_ks |
    c10::DispatchKeySet({c10::DispatchKey::PreDispatch, c10::DispatchKey::PythonDispatcher,
                         c10::DispatchKey::Functionalize, c10::DispatchKey::Tracer, kInterceptorKey});

// Everything above a backend's kernels. Without autograd's keys an operator of ours would make nodes and move
// version counters; without autocast's it would compute in other dtypes than its inputs have.
inline constexpr c10::DispatchKeySet kAboveBackendKeys =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset | kModeKeys;

// A call with any of these keys is inside functorch, a subclass, a dispatch mode or functionalisation. The
// interceptor lets it pass: it comes again below them, with the tensors that hold the data. Without this a call would
// be reported twice, the first time with tensors that cannot be read.
inline constexpr c10::DispatchKeySet kPassThroughKeys(
    {c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
     c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::FuncTorchBatched,
     c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchVmapMode});

// Functorch's wrappers of a tensor: they have no storage of their own, reading such memory is an error.
inline constexpr c10::DispatchKeySet kFunctorchWrapperKeys({c10::DispatchKey::FuncTorchBatched,
                                                            c10::DispatchKey::FuncTorchGradWrapper});

// A tensor with any of these keys is a wrapper or a subclass: another tensor, or Python code, holds its data. Taken for
// a plain tensor, its memory would be read past its end.
inline constexpr c10::DispatchKeySet kWrapperTensorKeys =
    c10::python_ks | c10::functorch_transforms_ks |
    c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchDynamicLayerBackMode});

}  // namespace op_tools
