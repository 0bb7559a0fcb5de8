// Options that all tools share; each tool declares its own beside its hook (capture/capture_options.h, ...).
// An argument wins over the environment; resolve() is called once, when a scope is entered, and a value that is not
// allowed is an Error that names the variable (or argument) and the value.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/call_list.h"
#include "base/export.h"
#include "base/option.h"

namespace op_tools {

class OpFilter;

enum class Level : uint8_t { kAten, kTorch };
OP_TOOLS_API std::string_view to_string(Level level);
OP_TOOLS_API Level level_from_string(std::string_view text);  // Error when it is neither "aten" nor "torch"

// The tool's part in a program's compiled graphs (torch.compile). Of several tools of a thread the later value wins.
enum class CompiledGraphs : uint8_t {
  kAsIs,   // they run compiled, and are not looked into
  kCheck,  // level torch: a compiled graph is a call, whose reference is its operators run eagerly; level aten: as
           // kAsIs
  kNodes,  // a graph runs operator by operator, each of them a call
  kEager,  // compiled functions run as without torch.compile
};
OP_TOOLS_API std::string_view to_string(CompiledGraphs choice);

// The part that a scope needs: filters compiled, steps sorted.
struct ResolvedOptions {
  std::shared_ptr<const OpFilter> filter;
  std::shared_ptr<const OpFilter> modules;  // nullptr: in all modules, and outside of them
  Level level = Level::kAten;
  CompiledGraphs compiled = CompiledGraphs::kAsIs;
  std::optional<std::vector<int64_t>> steps;
  std::shared_ptr<const CallList> calls;  // nullptr: all
  bool skip_cpu = false;
  bool all_threads = false;
};

// The options of any tool: the base of each tool's options.
struct OP_TOOLS_API ToolOptions : OptionSet {
  Option<std::string> ops;
  Option<std::string> skip;
  Option<Level> level;  // the Python package gives torch
  Option<std::string> output_dir;
  Option<std::string> modules;
  Option<std::vector<int64_t>> steps;
  Option<std::string> calls;
  Option<bool> skip_cpu;
  Option<bool> all_threads;
  Option<CompiledGraphs> compiled;

  // Reads from the environment the options that were not given. A tool adds checks of several of its options.
  virtual void resolve_all();
  virtual ResolvedOptions for_scope() const;
  // Variables that are read besides those of the options.
  virtual std::vector<Variable> further_variables() const { return {}; }

 protected:
  explicit ToolOptions(std::string_view prefix);
  ToolOptions(const ToolOptions&) = default;
  ToolOptions& operator=(const ToolOptions&) = default;
};

// Those of a hook of the program's own.
struct HookOptions : ToolOptions {
  HookOptions() : ToolOptions("OP_HOOK") {}
};

// Options with every question answered: hooks are made from these.
template <class Options>
struct Resolved : Options {
  explicit Resolved(const Options& options) : Options(options) {
    this->resolve_all();
    scope = this->for_scope();
  }
  ResolvedOptions scope;
};
template <std::derived_from<ToolOptions> Options>
requires(!std::same_as<Options, ToolOptions>) Resolved<Options> resolve(const Options& options) {
  return Resolved<Options>(options);
}

// Variables that belong to no tool.
OP_TOOLS_API std::vector<Variable> process_variables();

// The rank that the launcher gave this process (torchrun, mpirun, srun), 0 without a launcher. set_rank() is for who
// knows it otherwise (the default process group); it wins over the environment.
OP_TOOLS_API int64_t distributed_rank();
OP_TOOLS_API void set_rank(int64_t rank);
// How many ranks the launcher started, 1 without a launcher.
OP_TOOLS_API int64_t launched_ranks();

// OP_TOOLS_COMPAT=ditorch: print messages in the form that ditorch uses.
OP_TOOLS_API bool compat_ditorch();

}  // namespace op_tools
