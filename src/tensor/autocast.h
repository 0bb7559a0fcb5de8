// torch's autocast state of this thread. <ATen/autocast_mode.h> includes all operators, four seconds per file; here is
// the part that op_tools needs.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "base/export.h"

namespace op_tools {

struct Autocast {
  c10::DeviceType device;
  c10::ScalarType dtype;
  bool operator==(const Autocast&) const = default;
};

// The dtype to which autocast casts on `device`, for a thread whose excluded keys are `excluded` (autocast is on where
// its key is not among them); nothing where it is off or the device has none.
std::optional<c10::ScalarType> autocast_dtype(c10::DeviceType device, c10::DispatchKeySet excluded);
// All devices where it is on.
c10::SmallVector<Autocast, 2> autocast_devices(c10::DispatchKeySet excluded);
bool is_autocast_cache_enabled();

// While an object lives, autocast on `device` casts to `dtype`; whether it is on stays as it is. Nothing: as before.
class AutocastDtype {
 public:
  AutocastDtype(c10::DeviceType device, std::optional<c10::ScalarType> dtype);
  ~AutocastDtype();
  AutocastDtype(const AutocastDtype&) = delete;
  AutocastDtype& operator=(const AutocastDtype&) = delete;

 private:
  const c10::DeviceType device_;
  const std::optional<c10::ScalarType> before_;  // nothing: it was not set
};

// While an object lives, autocast is on for `devices` and as it was for others.
class OP_TOOLS_API AutocastState {
 public:
  AutocastState(const c10::SmallVector<Autocast, 2>& devices, bool cache);
  ~AutocastState();
  AutocastState(const AutocastState&) = delete;
  AutocastState& operator=(const AutocastState&) = delete;

 private:
  struct Before {
    Autocast autocast;
    bool enabled;
  };
  const bool cache_;
  c10::SmallVector<Before, 2> before_;
};

}  // namespace op_tools
