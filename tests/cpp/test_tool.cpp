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
    find_tool(tool).open(settings);
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
  const Tool tool = find_tool("OpCapture").open(named);
  CHECK(tool.hook->name() == "OpCapture");
  CHECK(tool.options.level == Level::kTorch);
  CHECK(tool.options.steps == std::vector<int64_t>{1, 2});
  CHECK(&find_tool("op_capture") == &find_tool("OpCapture"));
  REQUIRE(find_key(tool.hook->report(), "rows") != nullptr);
}

TEST_CASE("a wrong setting is named", "[tool]") {
  CHECK(refusal("OpCapture", make_dict({{"max_calls", "many"}})).find("max_calls=: 'many' is not an integer") == 0);
  CHECK(refusal("OpCapture", make_dict({{"ops", 3}})).find("ops=: 3 is not a string") == 0);
  CHECK(refusal("OpCapture", make_dict({{"steps", make_list({"a"})}})).find("steps=") == 0);
  CHECK(refusal("OpCapture", make_dict({{"level", "deep"}})).find("level=") == 0);
  CHECK(refusal("OpCapture", make_dict({{"colour", "red"}})) == "'colour' is no option of this tool");
  CHECK(refusal("OpCapture", Value(3)).find("are a dict") != std::string::npos);
  CHECK(refusal("OpCaptrue", make_dict({})).find("there is no tool 'OpCaptrue'; there are OpCapture") == 0);
}

TEST_CASE("a tool of somebody else's is registered once and opened by name", "[tool]") {
  ToolKind kind = tool_kind<CaptureHook>();
  CHECK_THROWS_WITH(register_tool(kind), Catch::Contains("is that of OpCapture"));
  kind.name = "OpToy";
  kind.feature = "toy";
  kind.flag = "toy";
  const size_t before = tool_kinds().size();
  register_tool(kind);
  CHECK(tool_kinds().size() == before + 1);
  CHECK(find_tool("toy").name == "OpToy");
  CHECK(find_tool("OpToy").open(make_dict({})).hook->name() == "OpCapture");
}

TEST_CASE("every tool describes its options and its columns, each with a line of help", "[tool]") {
  for (const ToolKind* kind : tool_kinds()) {
    INFO(kind->name);
    const auto options = kind->make_options();
    CHECK(options->prefix.rfind("OP_", 0) == 0);
    for (const OptionDescription& option : options->describe()) {
      INFO(option.text.name);
      CHECK_FALSE(option.text.help.empty());
      CHECK(option.text.help.find('\n') == std::string::npos);
      CHECK(option.choices.empty() == (option.text.type != "choice"));
    }
    REQUIRE_FALSE(kind->rows().empty());
    for (const RowDescription& row : kind->rows()) {
      CHECK_FALSE(row.columns.empty());
      for (const ColumnDescription& column : row.columns) CHECK_FALSE(column.help.empty());
    }
  }
}
