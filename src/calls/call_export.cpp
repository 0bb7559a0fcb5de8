#include <charconv>
#include <map>
#include <string>

#include "base/error.h"
#include "base/run_folder.h"
#include "calls/call_store.h"
#include "calls/capture_paths.h"
#include "calls/saved_call.h"

namespace op_tools {
namespace {

// Where a call lies: ".../<run>/<op>/<id>", ".../<run>/calls.zip!<op>/<id>", or with a side of a comparison below it.
struct Place {
  std::string run, side;
  uint64_t id = 0;
};

bool parse_id(const std::string& text, uint64_t& id) {
  const char *begin = text.data(), *end = text.data() + text.size();
  const auto [last, error] = std::from_chars(begin, end, id);
  return error == std::errc() && last == end;
}

Place place_of(const StoredCall& stored, const SavedCall& call) {
  Place place;
  place.run = stored.path();
  char before = 0;  // the character before the part that was taken last
  const auto take_last_part = [&] {
    const size_t at = place.run.find_last_of("/!");
    if (at == std::string::npos || at == 0) {
      throw Error(stored.path() + ": not exported: it lies in no folder <operator>/<number>");
    }
    before = place.run[at];
    std::string part = place.run.substr(at + 1);
    place.run.erase(at);
    return part;
  };
  std::string part = take_last_part();
  if (!parse_id(part, place.id)) {
    // ditorch has a folder below the number, too: the time, which is no side of a comparison.
    if (call.is_ours) place.side = std::move(part);
    part = take_last_part();
  }
  if (!parse_id(part, place.id))
    throw Error(stored.path() + ": not exported: it lies in no folder <operator>/<number>");
  part = take_last_part();  // the operator, or in captures of ditorch the process, whose calls have its numbers
  uint64_t process = 0;
  const bool has_process = !call.is_ours && parse_id(part, process);
  if (has_process) take_last_part();
  if (before == '!') take_last_part();  // the container
  while (!place.run.empty() && place.run.back() == '/') place.run.pop_back();
  if (has_process) place.run += "/" + part;
  return place;
}

}  // namespace

size_t export_calls(const std::string& from, const std::string& to, std::vector<std::string>* problems) {
  FoundCalls stored_calls = find_calls(from);
  stored_calls.name_missing();
  *problems = std::move(stored_calls.problems);
  std::string top = from;
  while (top.size() > 1 && top.back() == '/') top.pop_back();
  std::map<std::string, std::unique_ptr<CallStore>> stores;  // by run
  std::map<std::string, std::string> written;                // the call's folder, and where it came from
  size_t exported = 0;
  for (const auto& stored : stored_calls.calls) {
    try {
      SavedCall call = read_call(*stored);
      const Place place = place_of(*stored, call);
      call.id = place.id;
      // A run below `from` has the same path below `to`; a single call or run lies in `to` itself.
      const bool below = place.run.size() > top.size() && place.run.compare(0, top.size() + 1, top + "/") == 0;
      const std::string root = below ? to + place.run.substr(top.size()) : to;
      const auto [other, is_first] =
          written.emplace(root + "/" + call_folder({call.name, call.id, place.side}), stored->path());
      if (!is_first)
        throw Error(stored->path() + ": not exported: " + other->second + " is the same call of the same run");
      auto& store = stores[root];
      if (!store) {
        make_folders(root);
        store = CallStore::in_folder(root);
      }
      write_call(*store, call, place.side);
      if (!call.cut_off.empty()) problems->push_back(stored->path() + ": " + call.cut_off);
      ++exported;
    } catch (const Error& error) {
      const std::string text = error.what();
      problems->push_back(text.find(stored->path()) == std::string::npos ? stored->path() + ": " + text : text);
    }
  }
  return exported;
}

}  // namespace op_tools
