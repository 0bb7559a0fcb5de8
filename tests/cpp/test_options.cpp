#include "base/options.h"

#include "capture/capture_options.h"
#include "timing/time_options.h"

#include "base/error.h"
#include "base/op_filter.h"
#include "base/read_options.h"
#include "base/run_folder.h"
#include "catch.h"
#include "scoped_variable.h"

using Catch::Matchers::Equals;
using op_tools::CaptureFormat;
using op_tools::CaptureOptions;
using op_tools::test::ScopedVariable;

namespace {

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const op_tools::Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_with(const char* variable, const char* value) {
  const ScopedVariable set(variable, value);
  return error_of([] { resolve(CaptureOptions{}); });
}

}  // namespace

TEST_CASE("A number is the whole text, in decimal digits", "[options]") {
  CHECK(number_of("1.5") == 1.5);
  CHECK(number_of("-2e-3") == -2e-3);
  CHECK(number_of(".5") == 0.5);
  CHECK(number_of("5.") == 5.0);
  CHECK(number_of("-inf") == -std::numeric_limits<double>::infinity());
  REQUIRE(number_of("nan").has_value());
  CHECK(std::isnan(*number_of("nan")));
  CHECK(number_of("0.1") == 0.1);
  for (const auto* text : {"", "-", " 1", "1 ", "+1", "0x10", "1,5", "1e", "1.5.2", "e5", "--1", "infinit", "one"}) {
    INFO(text);
    CHECK_FALSE(number_of(text).has_value());
  }
}

TEST_CASE("With nothing set, every option has its default", "[options]") {
  const auto options = resolve(CaptureOptions{});
  CHECK(options.scope.filter->admits("torch.Tensor.add"));
  CHECK_FALSE(options.scope.filter->has_only());
  CHECK(options.level == op_tools::Level::kAten);
  CHECK(options.output_dir == absolute_path("."));
  CHECK_FALSE(options.scope.steps);
  CHECK_FALSE(options.skip_cpu);
  CHECK_FALSE(options.all_threads);
  CHECK(options.format == CaptureFormat::kFolders);
  CHECK(options.max_calls == op_tools::kNoLimit);
  CHECK(options.max_per_signature == op_tools::kNoLimit);
  CHECK(options.max_pending_mb == 1024);
  CHECK_FALSE(op_tools::compat_ditorch());
}

TEST_CASE("Each option is read from its variable", "[options]") {
  const ScopedVariable list("OP_CAPTURE_LIST", "torch.Tensor.*");
  const ScopedVariable disable("OP_CAPTURE_DISABLE_LIST", ".*_");
  const ScopedVariable output("OP_TOOLS_OUTPUT_DIR", "/somewhere/else");
  const ScopedVariable cpu("OP_TOOLS_SKIP_CPU", "1");
  const ScopedVariable format("OP_CAPTURE_FORMAT", "container");
  const ScopedVariable calls("OP_CAPTURE_MAX_CALLS", " 7 ");
  const ScopedVariable signature("OP_CAPTURE_MAX_PER_SIGNATURE", "2");
  const ScopedVariable pending("OP_TOOLS_MAX_PENDING_MB", "3");
  const ScopedVariable compat("OP_TOOLS_COMPAT", "ditorch");
  const auto options = resolve(CaptureOptions{});
  CHECK(options.scope.filter->admits("torch.Tensor.add"));
  CHECK_FALSE(options.scope.filter->admits("torch.Tensor.add_"));
  CHECK(options.output_dir == "/somewhere/else");
  CHECK(options.skip_cpu);
  CHECK(options.format == CaptureFormat::kContainer);
  CHECK(options.max_calls == 7);
  CHECK(options.max_per_signature == 2);
  CHECK(options.max_pending_mb == 3);
  CHECK(op_tools::compat_ditorch());

  SECTION("another tool's lists are its own") {
    CHECK(resolve(op_tools::TimeOptions{}).scope.filter->admits("torch.Tensor.add_"));
  }
  SECTION("all threads are a matter of the aten level") {
    CaptureOptions of_threads;
    of_threads.all_threads = true;
    of_threads.level = op_tools::Level::kAten;
    CHECK(resolve(of_threads).all_threads);
    of_threads.level = op_tools::Level::kTorch;
    CHECK_THROWS_WITH(resolve(of_threads), Catch::Contains("aten level only"));
  }
  SECTION("an explicit option wins, an empty list too") {
    CaptureOptions explicit_options;
    explicit_options.ops = "";
    explicit_options.skip = "torch.relu";
    explicit_options.level = op_tools::Level::kTorch;
    explicit_options.output_dir = "here";
    explicit_options.skip_cpu = false;
    explicit_options.format = "folders";
    explicit_options.max_calls = 1;
    explicit_options.max_per_signature = 9;
    explicit_options.max_pending_mb = 4;
    const auto won = resolve(explicit_options);
    CHECK(won.scope.filter->admits("torch.Tensor.add_"));
    CHECK_FALSE(won.scope.filter->admits("torch.relu"));
    CHECK(won.level == op_tools::Level::kTorch);
    CHECK(won.output_dir == absolute_path("here"));
    CHECK_FALSE(won.skip_cpu);
    CHECK(won.format == CaptureFormat::kFolders);
    CHECK(won.max_calls == 1);
    CHECK(won.max_per_signature == 9);
    CHECK(won.max_pending_mb == 4);
  }
}

TEST_CASE("A variable that is set to nothing counts as unset", "[options]") {
  const auto* variable = GENERATE("OP_CAPTURE_LIST", "OP_TOOLS_OUTPUT_DIR", "OP_TOOLS_SKIP_CPU", "OP_CAPTURE_FORMAT",
                                  "OP_CAPTURE_MAX_CALLS", "OP_TOOLS_MAX_PENDING_MB", "OP_TOOLS_COMPAT", "RANK");
  INFO(variable);
  CHECK(error_with(variable, "") == "no error");
}

TEST_CASE("Booleans are written in six ways", "[options]") {
  ScopedVariable cpu("OP_TOOLS_SKIP_CPU", nullptr);
  for (const auto* text : {"1", "true", "on", "TRUE", "On"}) {
    cpu.set(text);
    CHECK(resolve(CaptureOptions{}).skip_cpu);
  }
  for (const auto* text : {"0", "false", "off", "False"}) {
    cpu.set(text);
    CHECK_FALSE(resolve(CaptureOptions{}).skip_cpu);
  }
}

TEST_CASE("A bad variable is an error with its name, the value and the allowed values", "[options]") {
  CHECK_THAT(error_with("OP_TOOLS_SKIP_CPU", "yes"),
             Equals("OP_TOOLS_SKIP_CPU: 'yes' is not allowed; give 0, 1, true, false, on or off"));
  CHECK_THAT(error_with("OP_CAPTURE_FORMAT", "zip"),
             Equals("OP_CAPTURE_FORMAT: 'zip' is not allowed; give folders or container"));
  for (const auto* value : {"0", "-1", "1.5", "ten", "1e3", "7 8", " "}) {
    CHECK_THAT(error_with("OP_CAPTURE_MAX_CALLS", value), Equals("OP_CAPTURE_MAX_CALLS: '" + std::string(value) +
                                                                 "' is not allowed; give an integer of at least 1"));
  }
  CHECK_THAT(error_with("OP_CAPTURE_MAX_CALLS", "99999999999999999999"),
             Equals("OP_CAPTURE_MAX_CALLS: '99999999999999999999' is not allowed; give an integer of at most "
                    "9223372036854775807"));
  CHECK_THAT(error_with("OP_CAPTURE_MAX_PER_SIGNATURE", "x"),
             Equals("OP_CAPTURE_MAX_PER_SIGNATURE: 'x' is not allowed; give an integer of at least 1"));
  CHECK_THAT(error_with("OP_TOOLS_MAX_PENDING_MB", "9223372036854775807"),
             Equals("OP_TOOLS_MAX_PENDING_MB: '9223372036854775807' is not allowed; give an "
                    "integer from 1 to "
                    "8796093022207"));
  CHECK_THAT(error_with("OP_TOOLS_COMPAT", "torch"),
             Equals("OP_TOOLS_COMPAT: 'torch' is not allowed; give ditorch, or leave it unset"));
  CHECK_THAT(error_with("OP_CAPTURE_DISABLE_LIST", "add,("),
             Catch::Matchers::StartsWith("OP_CAPTURE_DISABLE_LIST: '('"));
}

TEST_CASE("A bad argument is an error with its name, the value and the allowed values", "[options]") {
  const auto error_after = [](auto change) {
    return error_of([&] {
      CaptureOptions options;
      change(options);
      resolve(options);
    });
  };
  CHECK_THAT(error_after([](auto& o) { o.ops = "["; }), Catch::Matchers::StartsWith("ops=: '['"));
  CHECK_THAT(error_after([](auto& o) { o.max_calls = 0; }),
             Equals("max_calls=: '0' is not allowed; give an integer of at least 1"));
  CHECK_THAT(error_after([](auto& o) { o.max_per_signature = -2; }),
             Equals("max_per_signature=: '-2' is not allowed; give an integer of at least 1"));
  CHECK_THAT(error_after([](auto& o) { o.max_pending_mb = int64_t{1} << 60; }),
             Catch::Matchers::StartsWith("max_pending_mb=: '1152921504606846976' is not allowed"));
  CHECK_THAT(error_after([](auto& o) { o.format = "tar"; }),
             Equals("format=: 'tar' is not allowed; give folders or container"));
  CHECK_THAT(error_after([](auto& o) { o.output_dir = ""; }),
             Equals("output_dir=: '' is not allowed; give the path of a folder"));
  CHECK_THAT(error_after([](auto& o) { o.output_dir = std::string("a\0b", 3); }),
             Catch::Matchers::StartsWith("output_dir=:"));
  CHECK_THAT(error_after([](auto& o) {
               o.steps = {3, -1};
             }),
             Equals("steps=: '-1' is not allowed; give an integer of at least 0"));
  CHECK_THAT(error_after([](auto& o) { o.steps = std::vector<int64_t>(); }),
             Equals("steps=: '' is not allowed; name at least one, or leave it out for all"));
}

TEST_CASE("Steps come out sorted and once each", "[options]") {
  CaptureOptions options;
  options.steps = {5, 2, 5, 0};
  CHECK(resolve(options).scope.steps == std::vector<int64_t>{0, 2, 5});
}

TEST_CASE("A level is given by its name", "[options]") {
  CaptureOptions options;
  options.level = "torch";
  CHECK(resolve(options).scope.level == op_tools::Level::kTorch);
  CHECK_THAT(error_of([&] { options.level = "jit"; }), Equals("level=: 'jit' is not allowed; give aten or torch"));
}

namespace {

enum class Colour : uint8_t { kRed, kGreen, kBlue };

// An option of each type.
struct ToyOptions : op_tools::ToolOptions {
  ToyOptions() : ToolOptions("OP_TOY") {}
  op_tools::Option<double> share{this, 0.5, {"share", "OP_TOY_SHARE", "of the calls"}};
  op_tools::Option<Colour> colour{
      this, Colour::kGreen, {"colour", "OP_TOY_COLOUR", "of the lines"}, {"red", "green", "blue"}};
  op_tools::Option<std::vector<int64_t>> sizes{this, {1, 2}, {"sizes", "OP_TOY_SIZES", "to count"}, {1, 9}};
  op_tools::Option<std::string> title{this, "", {"title", "OP_TOY_TITLE", "of the table"}};
};

}  // namespace

TEST_CASE("An option of each type has a default, takes arguments, reads its variable and describes itself",
          "[options]") {
  CHECK(resolve(ToyOptions{}).share == 0.5);
  CHECK(resolve(ToyOptions{}).sizes == std::vector<int64_t>{1, 2});
  const ScopedVariable share("OP_TOY_SHARE", " 0.25 "), colour("OP_TOY_COLOUR", "blue"), sizes("OP_TOY_SIZES", "3, 4");
  ToyOptions options;
  options.title = "mine";
  const auto resolved = resolve(options);
  CHECK(resolved.share == 0.25);
  CHECK(resolved.colour == Colour::kBlue);
  CHECK(resolved.sizes == std::vector<int64_t>{3, 4});
  CHECK(resolved.title.source() == "title=");
  CHECK(resolved.sizes.source() == "OP_TOY_SIZES");

  CHECK(options.share.take(int64_t{1}));
  CHECK(resolve(options).share == 1.0);
  CHECK_FALSE(options.share.take(std::string("much")));
  CHECK_FALSE(options.colour.take(true));
  CHECK(options.colour.take(std::string("red")));
  CHECK(resolve(options).colour == Colour::kRed);

  const std::vector<op_tools::OptionDescription> all = options.describe();
  REQUIRE(all.size() == 14);
  CHECK(all.front().text.name == "ops");
  CHECK(all.front().text.variable == "OP_TOY_LIST");
  CHECK(all[10].text.type == "float");
  CHECK(all[11].choices == std::vector<std::string>{"red", "green", "blue"});
  CHECK(all[12].text.type == "ints");
}

TEST_CASE("Each copy of a set of options has its own", "[options]") {
  ToyOptions first;
  first.title = "first";
  ToyOptions second = first;
  second.for_each([](op_tools::OptionBase& option) {
    if (option.name() == "title") option.take(std::string("second"));
  });
  CHECK(first.title == "first");
  CHECK(second.title == "second");
  first = second;
  CHECK(resolve(first).title == "second");
}

TEST_CASE("A wrong value of each type of option is refused with the allowed values", "[options]") {
  const auto error_of_variable = [](const char* name, const char* value) {
    const ScopedVariable set(name, value);
    return error_of([] { resolve(ToyOptions{}); });
  };
  CHECK_THAT(error_of_variable("OP_TOY_SHARE", "half"), Equals("OP_TOY_SHARE: 'half' is not allowed; give a number"));
  CHECK_THAT(error_of_variable("OP_TOY_COLOUR", "pink"),
             Equals("OP_TOY_COLOUR: 'pink' is not allowed; give red, green or blue"));
  CHECK_THAT(error_of_variable("OP_TOY_SIZES", "3,10"),
             Equals("OP_TOY_SIZES: '10' is not allowed; give an integer from 1 to 9"));
}

TEST_CASE("An option without a variable of its own has a variable by its name", "[options]") {
  const ScopedVariable steps("OP_CAPTURE_STEPS", "1,3"), level("OP_CAPTURE_LEVEL", "torch");
  const auto options = resolve(CaptureOptions{});
  CHECK(options.scope.steps.value_or(std::vector<int64_t>()) == std::vector<int64_t>{1, 3});
  CHECK(options.scope.level == op_tools::Level::kTorch);
  CaptureOptions().for_each([](op_tools::OptionBase& option) {
    INFO(option.name());
    CHECK(option.variable().starts_with("OP_"));
  });
}

TEST_CASE("Numbers with a fraction have bounds, and are finite", "[options]") {
  CHECK(error_with("OP_CAPTURE_MAX_GB", "0.5") == "no error");
  CHECK(error_with("OP_CAPTURE_MIN_FREE_GB", "0") == "no error");
  for (const auto* value : {"0", "-1", "inf", "nan"}) {
    CHECK_THAT(error_with("OP_CAPTURE_MAX_GB", value), Catch::Contains("OP_CAPTURE_MAX_GB: '" + std::string(value)) &&
                                                           Catch::EndsWith("give a number above 0"));
  }
  CHECK_THAT(error_with("OP_CAPTURE_MIN_FREE_GB", "-0.1"), Catch::EndsWith("give a number that is not negative"));
}

// Last of this file's cases on the rank: set_rank() has no way back.
TEST_CASE("The rank is RANK until set_rank() says otherwise", "[options]") {
  ScopedVariable rank("RANK", nullptr);
  CHECK(op_tools::distributed_rank() == 0);
  rank.set("3");
  CHECK(op_tools::distributed_rank() == 3);
  for (const auto* value : {"-1", "two", "1.0"}) {
    rank.set(value);
    CHECK_THAT(error_of([] { op_tools::distributed_rank(); }),
               Equals("RANK: '" + std::string(value) + "' is not allowed; give an integer of at least 0"));
  }
  CHECK_THAT(error_with("WORLD_SIZE", "many"), Catch::StartsWith("WORLD_SIZE: 'many' is not allowed"));
  CHECK_THAT(error_with("OP_CAPTURE_MAX_GB", "1"), Catch::StartsWith("RANK: '1.0' is not allowed"));
  rank.set(nullptr);
  // Of launchers that do not set RANK. mpirun inside a batch script of Slurm finds that script's variables.
  const ScopedVariable of_script("SLURM_PROCID", "0"), step("SLURM_STEP_NUM_TASKS", "64");
  CHECK(op_tools::distributed_rank() == 0);
  CHECK(op_tools::launched_ranks() == 64);
  const ScopedVariable of_mpirun("OMPI_COMM_WORLD_RANK", "5"), size("OMPI_COMM_WORLD_SIZE", "8");
  CHECK(op_tools::distributed_rank() == 5);
  CHECK(op_tools::launched_ranks() == 8);
  CHECK_THAT(error_of([] { op_tools::set_rank(-4); }),
             Equals("set_rank(): '-4' is not allowed; give an integer of at least 0"));
  op_tools::set_rank(0);
  CHECK(op_tools::distributed_rank() == 0);
}
