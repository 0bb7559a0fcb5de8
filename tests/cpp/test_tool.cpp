// Tools by name, and their settings.
#include "base/error.h"
#include "capture/capture_hook.h"
#include "catch.h"
#include "hooks/tool.h"
#include "temporary_folder.h"

using namespace op_tools;  // NOLINT: a test

namespace {

std::string refusal(const std::string& tool, const Value& settings) {
  try {
    Settings all(settings);
    find_tool(tool).open(all);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("a tool is opened by its name, or its feature's, with named settings", "[tool]") {
  const test::TemporaryFolder folder;
  const Value named = make_dict({{"ops", "mm"},
                                 {"level", "torch"},
                                 {"steps", make_list({2, 1})},
                                 {"output_dir", folder.path()},
                                 {"max_calls", 5},
                                 {"skip", Value()}});
  Settings settings(named);
  const Tool tool = find_tool("OpCapture").open(settings);
  CHECK(tool.hook->name() == "OpCapture");
  CHECK(tool.options.level == Level::kTorch);
  CHECK(tool.options.steps == std::vector<int64_t>{1, 2});
  CHECK(tool.options.output_dir == folder.path());
  CHECK(&find_tool("op_capture") == &find_tool("OpCapture"));
  REQUIRE(find_key(tool.hook->report(), "rows") != nullptr);
}

TEST_CASE("a wrong setting is named", "[tool]") {
  CHECK(refusal("OpCapture", make_dict({{"max_calls", "many"}})).find("max_calls=: 'many' is not a whole number") == 0);
  CHECK(refusal("OpCapture", make_dict({{"ops", 3}})).find("ops=: 3 is not a text") == 0);
  CHECK(refusal("OpCapture", make_dict({{"steps", make_list({"a"})}})).find("steps=") == 0);
  CHECK(refusal("OpCapture", make_dict({{"level", "deep"}})).find("level=") == 0);
  CHECK(refusal("OpCapture", make_dict({{"colour", "red"}})) == "'colour' is no setting of this tool");
  CHECK(refusal("OpCapture", Value(3)).find("are a dict") != std::string::npos);
  CHECK(refusal("OpCaptrue", make_dict({})).find("there is no tool 'OpCaptrue'; there are OpCapture") == 0);
}
