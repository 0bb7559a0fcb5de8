// The facts of a call that decide how its results are judged. Plain data.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "compare/compare_options.h"
#include "compare/metrics/tolerance.h"
#include "compare/rerun/replayable_call.h"
#include "hooks/graph_frame.h"
#include "tensor/value.h"

namespace op_tools {

struct CallFacts {
  // Of the tool.
  struct Options {
    CompareMethod method = CompareMethod::kRelative;
    const ToleranceTable* tolerances = nullptr;
    bool golden = true, nan_equal = true, strides = true;
    bool hands_out = false;  // see JudgeContext
  };
  struct Device {
    bool alone = false;                            // the call ran on the CPU: its own CPU run would say nothing
    std::optional<c10::ScalarType> autocast = {};  // its dtype where it is on; the devices' lists of operators differ
    bool tf32 = false;                             // it rounded the factors of float32 products to TF32
    bool approximated = false;                     // its kernel has approximations where the CPU's is exact
    bool names_device = false;                     // a copy to the CPU stands for a copy to another device
    std::string stray = {};                        // a result is on this device, and nothing in the call asks for that
    bool several = false;                          // the call's tensors and generators are on several devices
    bool absent = false;                           // it names a device that is not there
  };
  struct RandomNumbers {
    bool drawn = false;
    bool repeatable = false;  // the reference run draws the same
    bool is_other() const { return drawn && !repeatable; }
  };
  struct Pass {
    bool goes_backward = false;  // forward: golden's results are wanted for the gradients, too
    bool incomplete = false;     // backward: not all parts of the gradients came
    bool in_backward = false;    // an operator of a backward pass (aten level)
    bool of_graph = false;       // a compiled graph: the reference run is of its operators, also on the CPU
    GraphTraits graph = {};
    bool in_transform = false;  // inside vmap, grad and other transforms, which the CPU's run is not
  };
  struct Memory {
    bool uninitialized = false;             // returns uninitialized memory although its name does not show it
    int workspace = -1;                     // likewise: the result at this place is scratch memory
    std::vector<bool> written_inputs = {};  // by tensor index of the inputs; empty: no schema
    std::vector<bool> overlapping = {};     // likewise; see reads_what_it_writes()
  };

  std::string name;
  Options options = {};
  Device device = {};
  RandomNumbers random = {};
  Pass pass = {};
  Memory memory = {};
  Value args, kwargs;              // as they were before the call
  std::vector<at::Tensor> before;  // the input tensors, before the call

  // The call ran on the CPU, and the CPU's second run would only repeat it.
  bool has_no_reference() const { return device.alone && (!random.drawn || random.is_other()); }
};

// As far as a live call tells them: arguments, device, memory, transforms. Options, random numbers and the pass are the
// caller's to fill.
CallFacts facts_of(const ReplayableCall& call, std::string_view name);

// After the call: `stray`, and `names_device` where a result is on another device than an input, for x.cpu() and
// x.to(other) copy, and with everything on the CPU give x itself.
OP_TOOLS_API void note_result_devices(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs,
                                      CallFacts* facts);

}  // namespace op_tools
