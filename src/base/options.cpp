#include "base/options.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <optional>

#include "base/disk_time.h"
#include "base/log.h"
#include "base/op_filter.h"
#include "base/read_options.h"
#include "base/run_folder.h"

namespace op_tools {
namespace {

const Choices kLevels = {"aten", "torch"};
const Choices kCompiledGraphs = {"as-is", "check", "nodes", "eager"};

std::atomic<int64_t> known_rank = -1;  // -1: set_rank() was not called

// The variables by which launchers tell a process its rank and the number of ranks. The first whose rank is set
// decides: mpirun inside a batch script of Slurm finds SLURM_PROCID=0 there.
struct LauncherVariables {
  const char *rank, *ranks;
};
constexpr LauncherVariables kLaunchers[] = {{"RANK", "WORLD_SIZE"},
                                            {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                            {"PMI_RANK", "PMI_SIZE"},
                                            {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

const LauncherVariables& launcher() {
  const auto* const known = std::find_if(std::begin(kLaunchers), std::end(kLaunchers),
                                         [](const auto& variables) { return environment(variables.rank); });
  return known == std::end(kLaunchers) ? kLaunchers[0] : *known;
}

std::optional<int64_t> number_of_variable(const char* name) {
  const auto value = environment(name);
  return value ? std::optional(number_from(name, *value, 0, kMaxNumber)) : std::nullopt;
}

void check_launcher() {
  const int64_t ranks = launched_ranks();
  if (known_rank.load(std::memory_order_relaxed) >= 0) return;  // the variable of the rank is not asked
  const int64_t rank = distributed_rank();
  const LauncherVariables& variables = launcher();
  if (rank < ranks || !environment(variables.ranks)) return;
  // They were set by hand, and the files will say that ranks are missing. Once: each tool comes here.
  static std::once_flag once;
  std::call_once(once, [&] {
    log::warn(std::string(variables.rank) + "=" + std::to_string(rank) + " contradicts " + variables.ranks + "=" +
              std::to_string(ranks) + ": ranks are counted from 0");
  });
}

}  // namespace

std::string_view to_string(Level level) {
  return kLevels[static_cast<size_t>(level)];
}

Level level_from_string(std::string_view text) {
  const auto entry = std::find(kLevels.begin(), kLevels.end(), text);
  if (entry == kLevels.end()) refuse("level", text, "give aten or torch");
  return static_cast<Level>(entry - kLevels.begin());
}

std::string_view to_string(CompiledGraphs choice) {
  return kCompiledGraphs[static_cast<size_t>(choice)];
}

ToolOptions::ToolOptions(std::string_view prefix_of_names)
    : OptionSet(prefix_of_names),
      ops(this, "", {"ops", prefix + "_LIST", "only these operators: regular expressions", "names", "all"}),
      skip(this, "", {"skip", prefix + "_DISABLE_LIST", "all but these operators; taken off `ops`", "names"}),
      level(
          this, Level::kAten,
          {"level", "",
           "`torch` (the functions that Python calls) or `aten` (the operators that torch dispatches, from any caller)",
           "", "torch; in C++ aten"},
          kLevels),
      output_dir(this, ".",
                 {"output_dir", "OP_TOOLS_OUTPUT_DIR", "the folder in which the result folder is made", "path",
                  "the working directory"}),
      modules(this, "",
              {"modules", prefix + "_MODULES", "only calls made in these modules of the model, or inside them", "names",
               "all"}),
      steps(this, {}, {"steps", "", "record only in these steps, counted from 0 by `step()`"}, at_least(0)),
      calls(this, "",
            {"only_calls", prefix + "_ONLY_CALLS",
             "only the calls that this file lists, as `list_calls=` and op-tools bisect name them", "path", "all"}),
      skip_cpu(this, false, {"skip_cpu", "OP_TOOLS_SKIP_CPU", "pass over calls whose tensors are all on the CPU"}),
      all_threads(
          this, false,
          {"all_threads", "",
           "level aten: also operators of threads that start no tool themselves: of those that Python starts from "
           "then on all, of others not the first few"}),
      compiled(
          this, CompiledGraphs::kCheck,
          {"compiled", "OP_TOOLS_COMPILED",
           "graphs of torch.compile: `check` (level torch: each is a call, run again as its operators), `nodes` (run "
           "operator by operator), `eager` (functions run as without torch.compile), `as-is` (not looked into)"},
          kCompiledGraphs) {}

void ToolOptions::resolve_all() {
  for_each([](OptionBase& option) { option.resolve(); });
  if (output_dir.get().empty() || output_dir.get().find('\0') != std::string::npos) {
    refuse(output_dir.source(), output_dir.get(), "give the path of a folder");
  }
  output_dir = absolute_path(output_dir.get());  // a program may change its working folder
  // So that a wrong value is reported here and not in the middle of a run.
  compat_ditorch();
  disk_silence();
  check_launcher();
  most_gigabytes_of_rows();
}

ResolvedOptions ToolOptions::for_scope() const {
  ResolvedOptions resolved;
  resolved.filter = std::make_shared<OpFilter>(ops.get(), skip.get(), ops.source(), skip.source());
  auto in_modules = std::make_shared<OpFilter>(modules.get(), "", modules.source(), "");
  if (in_modules->has_only()) resolved.modules = std::move(in_modules);
  resolved.level = level;
  resolved.compiled = compiled;
  if (steps.is_set()) {
    resolved.steps = steps.get();
    std::sort(resolved.steps->begin(), resolved.steps->end());
    resolved.steps->erase(std::unique(resolved.steps->begin(), resolved.steps->end()), resolved.steps->end());
  }
  if (!calls.get().empty()) {
    resolved.calls = std::make_shared<CallList>(read_call_list(calls, calls.source()));
  }
  resolved.skip_cpu = skip_cpu;
  resolved.all_threads = all_threads;
  if (all_threads && level == Level::kTorch) {
    refuse(all_threads.source(), "on",
           "all_threads works at the aten level only: torch functions are intercepted in the scope's thread");
  }
  return resolved;
}

std::vector<Variable> process_variables() {
  return {
      {"OP_TOOLS", "tools that op-tools env starts in every Python: capture,time:aten"},
      {"OP_TOOLS_LOG_LEVEL",
       "trace, debug, info (a line for each call), notice, warn, error, critical or off (notice)"},
      {"OP_TOOLS_MAX_ROWS_GB",
       "a tool's file with a row for each call gets no more rows from N GB on; rows of wrong results are written "
       "nevertheless; 8"},
      {"OP_TOOLS_IMPORT", "modules that bring a device, imported behind torch: torch_npu"},
      {"OP_TOOLS_AS_CUDA", "the device that a program means by \"cuda\" (as_cuda): npu, sim, ..."},
      {"OP_TOOLS_AS_CUDA_NAMES", "as_cuda: the names that the program has for its device; cuda"},
      {"OP_TOOLS_AS_CUDA_SHOW", "as_cuda: 0: device.type says the device's own name"},
      {"OP_TOOLS_AS_CUDA_UNAVAILABLE_FOR", "as_cuda: packages to which torch.cuda.is_available() says False"},
      {"OP_TOOLS_FAIL_ON_WRONG", "1: with OP_TOOLS, exit status 1 when a tool found something wrong"},
      {"OP_TOOLS_FAIL_ON_VARIANT",
       "1: with OP_TOOLS, exit status 1 when OpInvariance found a result that did not keep its bits"},
      {"OP_TOOLS_ALLOW_UNSEEN", "1: with either of them, status 0 although most was not looked at"},
      {"OP_TOOLS_ACCOUNT",
       "a file that each process with torch makes, with its number behind: the calls that its tools did not see; of "
       "op-tools bisect"},
      {"OP_TOOLS_BISECT_JOB", "set by op-tools bisect --jobs: the number of a run among those at the same time"},
      {"OP_TOOLS_SHARE",
       "set by --jobs of a command: the number of a process, their count, and the folder in which they meet"},
      {"OP_TOOLS_SHARE_TIMEOUT",
       "of work that processes of a launch share: seconds without a sign of life after which one is missing (300)"},
      {"OP_TOOLS_COMPAT", "ditorch: print and spell as ditorch's op_tools"},
      {"RANK",
       "of a distributed launch: the folder of the results; else OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID, "
       "which mpirun and srun set"},
      {"WORLD_SIZE",
       "of a distributed launch: from 16 on, OpCapture writes containers; beside the others OMPI_COMM_WORLD_SIZE, "
       "PMI_SIZE or SLURM_STEP_NUM_TASKS"},
      {"OP_TOOLS_SIM_FAULTS", "faults of the simulated device"},
      {"OP_TOOLS_SIM_LATENCY", "how long operators of the simulated device take"},
      {"OP_TOOLS_SIM_ROUNDING", "1: the simulated device rounds otherwise than the CPU"},
      {"OP_TOOLS_SIM_GRAPH_FAULT", "the fault of the graph compiler sim_graph"},
      {"OP_TOOLS_VENV", "./dev: the virtual environment"},
      {"OP_TOOLS_TORCH", "./dev: the torch to install"},
      {"OP_TOOLS_EXTRAS", "1: ./dev: also install the libraries of requirements-extras.txt, and a Vulkan device"},
      {"OP_TOOLS_JOBS", "./dev: compilations at once"},
      {"OP_TOOLS_TOGETHER", "./dev: so many files of a folder are compiled as a single file"},
      {"OP_TOOLS_BUILD_DIR", "the tests: where the project was built"},
      {"OP_TOOLS_DITORCH", "./dev bench peers: the folder of ditorch's package"},
  };
}

int64_t distributed_rank() {
  const int64_t rank = known_rank.load(std::memory_order_relaxed);
  if (rank >= 0) return rank;
  return number_of_variable(launcher().rank).value_or(0);
}

int64_t launched_ranks() {
  return std::max<int64_t>(1, number_of_variable(launcher().ranks).value_or(1));
}

void set_rank(int64_t rank) {
  check_range("set_rank()", std::to_string(rank), rank, 0, kMaxNumber);
  known_rank = rank;
}

bool compat_ditorch() {
  const auto value = environment("OP_TOOLS_COMPAT");
  if (!value) return false;
  if (*value != "ditorch") refuse("OP_TOOLS_COMPAT", *value, "give ditorch, or leave it unset");
  return true;
}

}  // namespace op_tools
