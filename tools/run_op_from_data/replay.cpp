#include "run_op_from_data/replay.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/op_filter.h"
#include "calls/call_store.h"
#include "run_op_from_data/engine.h"
#include "run_op_from_data/report.h"
#include "run_op_from_data/shrink_command.h"
#include "run_op_from_data/summary.h"
#include "run_op_from_data/times.h"
#include "tensor/exception_text.h"
#include "timing/stopwatch.h"

namespace op_tools::replay {
namespace {

void load_library(const std::string& name) {
  // Global, so that a backend finds the symbols of libraries loaded before it.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) throw Error("cannot load " + name + ": " + dlerror());
  // Most register themselves; the simulated device waits to be asked.
  if (void* load = dlsym(library, "op_tools_load_device")) reinterpret_cast<void (*)()>(load)();
}

// Ours lies beside the library with this program.
void load_simulated_device() {
  Dl_info own{};
  if (dladdr(reinterpret_cast<void*>(&load_library), &own) == 0 || !own.dli_fname) return;
  std::string library = own.dli_fname;
  library.resize(library.rfind('/') + 1);
  library += "libop_tools_sim_device.so";
  if (access(library.c_str(), R_OK) == 0) load_library(library);
}

// The program is linked with torch's CPU part only.
void prepare_device(const ReplayOptions& options) {
  for (const std::string& library : options.libraries) load_library(library);
  const std::string type = options.device.substr(0, options.device.find(':'));
  if (type == "sim" && options.libraries.empty()) load_simulated_device();
  const std::string backend =
      "; its backend is missing: name the shared library that registers it, --load LIBRARY, or run the calls by "
      "Python, which imports the package: python -m op_tools.run_op_from_data --device " +
      type + " DIR";
  try {
    const c10::Device device(options.device);
    if (device.is_cuda() && !c10::impl::hasDeviceGuardImpl(c10::kCUDA)) load_library("libtorch_cuda.so");
    if (!device.is_cpu() && !device.is_meta() && !c10::impl::hasDeviceGuardImpl(device.type())) {
      throw Error("--device " + options.device + ": nothing here runs on it" + backend);
    }
    if (device.has_index() && !device.is_cpu() && !device.is_meta()) {
      const c10::DeviceIndex count = c10::impl::getDeviceGuardImpl(device.type())->deviceCount();
      if (device.index() >= count) {
        throw Error("--device " + options.device + ": there is no such device; their number is " +
                    std::to_string(count));
      }
    }
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    text.resize(std::min(text.find('\n'), text.size()));
    throw Error("--device " + options.device + ": " + text + backend);
  }
}

}  // namespace

namespace {

struct SelectedCalls {
  std::vector<std::unique_ptr<StoredCall>> calls;  // of this shard
  size_t count = 0;                                // of all shards
  std::vector<std::string> problems;               // paths that could not be searched
};

SelectedCalls calls_of(const ReplayOptions& options) {
  SelectedCalls selected;
  const OpFilter filter(options.filter, "", "--filter", "");
  for (const std::string& path : options.paths) {
    try {
      FoundCalls stored_calls = find_calls(path);
      for (auto& call : stored_calls.calls) selected.calls.push_back(std::move(call));
      const bool has_nothing = stored_calls.calls.empty() && stored_calls.problems.empty();
      std::erase_if(stored_calls.accounted, [&](const AccountedCalls& calls) { return !filter.admits(calls.op); });
      stored_calls.name_missing();
      selected.problems.insert(selected.problems.end(), stored_calls.problems.begin(), stored_calls.problems.end());
      if (has_nothing) selected.problems.push_back(path + ": no captured call in it");
    } catch (const std::exception& error) {
      selected.problems.push_back(exception_text(error));
    }
  }
  selected.count = selected.calls.size();
  if (!options.shard) return selected;
  std::vector<std::unique_ptr<StoredCall>> ours;
  for (auto i = static_cast<size_t>(options.shard->index); i < selected.count;
       i += static_cast<size_t>(options.shard->count)) {
    ours.push_back(std::move(selected.calls[i]));
  }
  selected.calls = std::move(ours);
  if (options.shard->index != 0) selected.problems.clear();  // each shard meets them; the first reports them
  return selected;
}

}  // namespace

int run(const ReplayOptions& options, PythonCaller* caller) {
  prepare_device(options);
  // Before hours are spent.
  if (!options.compare.empty()) read_times(options.compare);
  check_writable("--json", options.json);
  check_writable("--expected", options.expected);
  std::optional<SavedInvariance> invariance;
  if (options.invariance) invariance.emplace();
  Engine engine(options, caller, invariance ? &*invariance : nullptr);
  Stopwatch whole(c10::kCPU, /*synchronize=*/false);
  whole.start();
  const SelectedCalls selected = calls_of(options);
  Reporter reporter(options, selected.calls.size(), selected.count);
  std::atomic<size_t> next{0};
  std::atomic<bool> interrupted{false};
  const auto work = [&](PythonCaller* asked) {
    for (size_t i = next++; i < selected.calls.size() && !interrupted; i = next++) {
      reporter.add(i, engine.replay(*selected.calls[i]));
      if (asked && asked->is_interrupted()) interrupted = true;
    }
  };
  // The workers get this thread's state of torch, and with it the scopes that are on here.
  const at::ThreadLocalState state;
  std::vector<std::thread> workers;
  for (size_t i = 1; i < std::min(static_cast<size_t>(options.jobs), selected.calls.size()); ++i) {
    workers.emplace_back([&] {
      const at::ThreadLocalStateGuard as_here(state);
      work(nullptr);
    });
  }
  work(caller);
  for (std::thread& worker : workers) worker.join();
  if (interrupted) throw Error("interrupted");
  const int kept = invariance ? invariance->finish(options.allow_unseen) : kAgrees;
  const int status = reporter.finish(selected.problems, whole.stop() / 1000);
  return status == kDiffers || kept == kAgrees ? status : kept;  // 1 comes before 2
}

int run_command(const std::vector<std::string>& arguments, PythonCaller* caller) {
  const Arguments parsed = parse_arguments(arguments);
  if (!parsed.options) return parsed.exit_status;
  try {
    if (!parsed.options->shrink.empty()) {
      prepare_device(*parsed.options);
      return shrink_command(*parsed.options, caller);
    }
    const int status = parsed.options->merge ? merge_reports(*parsed.options) : run(*parsed.options, caller);
    return status_after(status, [] {
      std::cout.flush();
      if (!std::cout) throw FileError("standard output cannot be written: its report is not whole");
    });
  } catch (const FileError& error) {
    std::cerr << "run_op_from_data: " << error.what() << "\n";
    return kIncomplete;
  } catch (const std::exception& error) {
    std::cerr << "run_op_from_data: " << exception_text(error) << "\n";
    return kWrongUsage;
  }
}

}  // namespace op_tools::replay
