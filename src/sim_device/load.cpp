#include <cstdlib>
#include <exception>
#include <mutex>

#include "base/log.h"
#include "sim_device/device.h"
#include "sim_device/faults.h"
#include "sim_device/kernels.h"
#include "sim_device/memory.h"
#include "sim_device/queue.h"
#include "sim_device/sim_device.h"

namespace op_tools::sim_device {
namespace {

std::mutex mutex;
bool loaded = false;
bool planted = false;

}  // namespace

void finish() {
  try {
    synchronize();
  } catch (const std::exception& failure) {
    log::warn(std::string("sim: work that was never waited for has failed: ") + failure.what());
  }
}

void load() {
  const std::lock_guard lock(mutex);
  if (!loaded) {
    register_device();
    register_memory();
    register_copies();
    register_kernels();
    register_autocast();
    register_collectives();
    std::atexit(finish);
    loaded = true;
  }
  if (!planted) {  // after an error the next load() tries again: a program must not go on without its faults
    plant_from_environment();
    planted = true;
  }
}

// For programs that open the library with dlopen (run_op_from_data --load).
extern "C" OP_TOOLS_API void op_tools_load_device() {
  load();
}

bool is_loaded() {
  const std::lock_guard lock(mutex);
  return loaded;
}

}  // namespace op_tools::sim_device
