// Options of OpInvariance (base/options.h has those of all tools).
#pragma once

#include <cstdint>

#include "base/options.h"

namespace op_tools {

struct InvarianceOptions : ToolOptions {
  InvarianceOptions() : ToolOptions("OP_INVARIANCE") {}

  Option<int64_t> first_n_per_signature{
      this,
      3,
      {"first_n_per_signature", "", "run again only the first N calls per operator, shapes and dtypes"},
      at_least(1)};
  Option<int64_t> every_nth{
      this, 1, {"every_nth", "", "of those only every Nth, beginning with the first"}, at_least(1)};
  Option<double> most_share{
      this,
      0,
      {"most_share", "",
       "the share of the program's time that runs again may take, as 0.02; calls wait for their turn; 0: any"},
      kNotNegative};
  Option<int64_t> repeats{this, 2, {"repeats", "", "runs of a call on the same inputs"}, {1, 1000}};
  Option<bool> alignment{this, true, {"alignment", "", "run it from inputs at another alignment in memory"}};
  Option<bool> stream{this, true, {"stream", "", "on a device: run it on another stream"}};
  Option<bool> threads{
      this,
      false,
      {"threads", "", "on the CPU: run it with another number of threads, which is the whole process's meanwhile"}};
  Option<bool> batch{
      this,
      true,
      {"batch", "", "run it with other rows or other values in the batch, and with its rows at other positions"}};
  Option<bool> strides{this, true, {"strides", "", "run it with a gap behind each row of the batch in memory"}};
  Option<bool> sequence{
      this,
      true,
      {"sequence", "",
       "run it with the second dimension in pieces, in a row and at other places, attention with more keys that its "
       "mask "
       "leaves out, with other tokens in front, with its queries in pieces and its sequences behind each other"}};
  Option<bool> gradients{this, true, {"gradients", "", "level torch: run the backward again, too"}};
  Option<int64_t> max_saved{
      this,
      1,
      {"max_saved", "", "calls saved per operator, phase, module and relation, for op-tools repro"},
      at_least(0)};
  Option<int64_t> max_saved_mb{
      this, 1024, {"max_saved_mb", "", "MB of all saved calls together"}, {0, kMaxNumber >> 20}};
};
using ResolvedInvarianceOptions = Resolved<InvarianceOptions>;

}  // namespace op_tools
