#include "run_op_from_data/arguments.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <iostream>

#include "base/error.h"
#include "base/version.h"

namespace op_tools::replay {
namespace {

constexpr const char* kFooter = R"(
DIR is the folder of a captured call, any folder above many, or a container file (calls.zip).

Examples
  run_op_from_data op_capture_result/0/2024-08-06--11-41 --acc_check
      run all captured calls; compare with the saved results
  run_op_from_data .../torch.Tensor.div/5 --run_times 3 --sync_time_measure
      time a call, forward and backward
  run_op_from_data captures --run_times 20 --sync_time_measure --json cpu.json
  run_op_from_data captures --run_times 20 --sync_time_measure --device cuda:0 --compare cpu.json
      time the same calls on two devices; print the ratio of their medians by operator
  run_op_from_data captures --acc_check --shard 0/4 --json part0.json
  run_op_from_data --merge part0.json part1.json part2.json part3.json
      a large collection in four parts, anywhere; then a summary and exit status of all
  run_op_from_data captures --acc_check --device cuda:0 --filter 'torch.nn.functional.*' --json report.json
      run the nn.functional calls on a GPU; compare with the saved results and with the CPU; write a report

--acc_check judges by the CPU's own error against float64. Tolerances instead: AUTOCOMPARE_ERROR_TOLERANCE[_FLOAT16|_BFLOAT16|_FLOAT32|_FLOAT64]="atol,rtol", for a single operator with its name in
front (LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16).

Exit status
   0  all calls ran and agree
   1  some differ (whether or not others could not be run)
   2  none differ, but some could not be run or read, or are missing: each is listed with its reason;
      or most have no verdict, or --filter matched no call
  64  wrong usage
)";

Shard shard_from(const std::string& text) {
  const size_t slash = text.find('/');
  const auto number = [&](size_t from, size_t length) {
    int64_t value = -1;
    const char* const begin = text.data() + from;
    const auto [end, failure] = std::from_chars(begin, begin + length, value);
    return failure == std::errc() && end == begin + length ? value : -1;
  };
  const Shard shard =
      slash == std::string::npos ? Shard{-1, -1} : Shard{number(0, slash), number(slash + 1, text.size() - slash - 1)};
  if (shard.index < 0 || shard.index >= shard.count) {
    throw Error("--shard: '" + text + "' is not allowed; give I/N, part I of N counted from 0, as 0/4");
  }
  return shard;
}

// The parts that CLI11 cannot put into ReplayOptions itself: options that were given or not, and strings with a form of
// their own.
struct Unparsed {
  std::string method, shard;
  uint64_t seed = 0;
  int warm_up = 0;
  CLI::Option *seed_option = nullptr, *warm_up_option = nullptr;

  // Throws Error that names the option.
  void into(ReplayOptions& options) const {
    if (options.invariance && options.jobs > 1) throw Error("--invariance runs a call at a time: leave out --jobs");
    if (!shard.empty()) options.shard = shard_from(shard);
    if (!method.empty()) options.method = method_from_string("--method", method);
    if (seed_option->count() > 0) options.seed = seed;
    if (warm_up_option->count() > 0) options.warm_up = warm_up;
  }
};

void add_comparison(CLI::App& app, ReplayOptions& options, Unparsed& unparsed) {
  app.add_flag("--acc_check", options.acc_check,
               "Compare with the saved results and gradients, and on another device than the CPU "
               "with the CPU's; float64 decides who is right");
  app.add_flag("--invariance", options.invariance,
               "Run each call again on the device, in other memory, in other batches, with its rows at other places: "
               "has its result the same bits (OpInvariance)? Status 1 where it has not");
  app.add_flag("--allow-unseen", options.allow_unseen,
               "Status 0 instead of 2 where some calls could not be run, or most have no verdict");
  app.add_option("--method", unparsed.method,
                 "How to judge: relative (the default), allclose, bitwise, ulp, msprobe-quick or msprobe-absolute; a "
                 "failure that OpAutoCompare saved is judged by the method that found it")
      ->type_name("M");
}

void add_measurement(CLI::App& app, ReplayOptions& options, Unparsed& unparsed) {
  app.add_option("--run_times", options.run_times, "Run each call N times, on fresh inputs each time")
      ->check(CLI::Range(1, 1000000000))
      ->type_name("N");
  app.add_flag("--sync_time_measure", options.sync_time_measure,
               "Print the time of each forward and backward, the device synchronised, and their medians");
  unparsed.warm_up_option = app.add_option("--warm_up", unparsed.warm_up,
                                           "Runs before those that count (1 where several runs are measured, else 0)")
                                ->check(CLI::Range(0, 1000000000))
                                ->type_name("N");
  app.add_option("--compare", options.compare,
                 "Print the ratio of the times to those in FILE, which --json wrote on another device or version")
      ->type_name("FILE");
}

void add_selection(CLI::App& app, ReplayOptions& options, Unparsed& unparsed) {
  app.add_flag("--only_run_forward", options.only_run_forward, "Leave out backward");
  app.add_option("--device", options.device, "Run on this device: cpu (the default), cuda, cuda:1, npu, ...")
      ->type_name("D");
  app.add_option("--filter", options.filter,
                 "Only calls whose whole name matches any of these regular expressions, separated "
                 "by commas")
      ->type_name("RE");
  const CLI::Validator named([](const std::string& file) { return file.empty() ? "is empty: give a file" : ""; }, "");
  app.add_option("--json", options.json, "Write summary and all calls as a JSON object")
      ->check(named)
      ->type_name("FILE");
  app.add_option("--expected", options.expected,
                 "With --acc_check: judge against the CPU (on the CPU: against float64) and write the "
                 "expected results, values and limits, as a .pth file")
      ->check(named)
      ->type_name("FILE");
  app.add_option("--jobs", options.jobs, "Work on N calls at once (times then say little)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.add_option("--shard", unparsed.shard,
                 "Replay part I of N only, counted from 0: every Nth call. Under torchrun the ranks share the calls "
                 "without it")
      ->type_name("I/N");
  app.add_flag("--merge", options.merge,
               "DIR are files that --json wrote of all parts (--shard): print a summary of them all");
  app.add_flag("--no_summary", options.no_summary, "Leave out the closing summary");
}

void add_program(CLI::App& app, ReplayOptions& options, Unparsed& unparsed) {
  unparsed.seed_option =
      app.add_option("--seed", unparsed.seed, "Seed the random generators with N, in place of the saved random states")
          ->type_name("N");
  app.add_option("--load", options.libraries, "Load a shared library first: custom operators, a device's backend")
      ->type_name("LIB")
      ->allow_extra_args(false);
  app.add_flag("-v,--verbose", options.verbose, "A line for each call");
  app.add_flag("-q,--quiet", options.quiet, "The summary only");
}

void add_shrinking(CLI::App& app, ReplayOptions& options) {
  app.add_option(
         "--shrink", options.shrink,
         "Look for the smallest form of the only call in DIR that still fails on the device; written to FOLDER, "
         "which is there. Started again after a crash of the operator, it goes on from its journal there")
      ->type_name("FOLDER");
  app.add_option("--attempts", options.attempts, "Of --shrink, at most N (200)")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  app.add_option("--attempt_seconds", options.attempt_seconds,
                 "Of --shrink: after S seconds in an attempt the process ends with SIGALRM (60)")
      ->check(CLI::Range(1, 1000000))
      ->type_name("S");
}

}  // namespace

Arguments parse_arguments(const std::vector<std::string>& arguments) {
  CLI::App app{"Runs captured operator calls again: on real data, without the model that made it.", "run_op_from_data"};
  app.footer(kFooter);
  app.set_version_flag("--version", std::string(version()));
  ReplayOptions options;
  Unparsed unparsed;
  app.add_option("DIR", options.paths, "Captured calls")->required();
  add_comparison(app, options, unparsed);
  add_measurement(app, options, unparsed);
  add_selection(app, options, unparsed);
  add_program(app, options, unparsed);
  add_shrinking(app, options);
  // CLI11 takes the arguments from the end.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
    unparsed.into(options);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error, std::cout, std::cerr);
    return {std::nullopt, status == 0 ? 0 : kWrongUsage};
  } catch (const Error& error) {
    std::cerr << "run_op_from_data: " << error.what() << "\n";
    return {std::nullopt, kWrongUsage};
  }
  return {std::move(options), 0};
}

}  // namespace op_tools::replay
