#include <charconv>
#include <map>
#include <string>

#include "base/error.h"
#include "base/run_folder.h"
#include "calls/call_store.h"

namespace op_tools {
namespace {

// Where a call lies: ".../<run>/<op>/<id>", or ".../<run>/calls.zip!<op>/<id>".
struct Place {
  std::string run, op;
  uint64_t id = 0;
};

Place place_of(const std::string& path) {
  const auto fail = [&] { throw Error(path + ": not exported: it lies in no folder <operator>/<number>"); };
  const size_t id_slash = path.find_last_of('/');
  if (id_slash == std::string::npos || id_slash == 0) fail();
  const size_t op_slash = path.find_last_of("/!", id_slash - 1);
  if (op_slash == std::string::npos) fail();
  Place place;
  const char *begin = path.data() + id_slash + 1, *end = path.data() + path.size();
  const auto [last, error] = std::from_chars(begin, end, place.id);
  if (error != std::errc() || last != end) fail();
  place.op = path.substr(op_slash + 1, id_slash - op_slash - 1);
  place.run = path.substr(0, op_slash);
  if (path[op_slash] == '!') place.run.erase(place.run.find_last_of('/') + 1);
  while (!place.run.empty() && place.run.back() == '/') place.run.pop_back();
  return place;
}

void export_call(const StoredCall& call, const CallKey& key, CallStore& store) {
  // input.pth last: what has one is a call, so an export that was cut off shows no call that is half there.
  constexpr CallFile kFiles[] = {CallFile::kOutput, CallFile::kGradInputs, CallFile::kGradOutputs};
  for (const CallFile file : kFiles) {
    for (uint32_t pass = 0; call.has(file, pass); ++pass) store.write(key, file, pass, call.read(file, pass));
  }
  if (call.has(CallFile::kMeta)) store.write_text(key, CallFile::kMeta, 0, call.read_text(CallFile::kMeta));
  store.write(key, CallFile::kInput, 0, call.read(CallFile::kInput));
}

}  // namespace

size_t export_calls(const std::string& from, const std::string& to, std::vector<std::string>* problems) {
  FoundCalls found = find_calls(from);
  *problems = std::move(found.problems);
  std::string top = from;
  while (top.size() > 1 && top.back() == '/') top.pop_back();
  std::map<std::string, std::unique_ptr<CallStore>> stores;  // by run
  size_t exported = 0;
  for (const auto& call : found.calls) {
    try {
      const Place place = place_of(call->path());
      // A run below `from` keeps its path from there; a single call or run needs none.
      const bool below = place.run.size() > top.size() && place.run.compare(0, top.size() + 1, top + "/") == 0;
      const std::string root = below ? to + place.run.substr(top.size()) : to;
      auto& store = stores[root];
      if (!store) {
        make_folders(root);
        store = CallStore::in_folder(root);
      }
      export_call(*call, {place.op, place.id}, *store);
      ++exported;
    } catch (const Error& error) {
      problems->emplace_back(error.what());
    }
  }
  return exported;
}

}  // namespace op_tools
