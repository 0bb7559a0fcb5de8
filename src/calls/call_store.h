// Where captured calls live on disk: the only place that knows folder and file names, both ways.
//
//   <output_dir>/op_capture_result/<rank>/<timestamp>/<op>/<id>/{input,output,grad_inputs,grad_outputs}.pth, meta.json
//   <output_dir>/op_capture_result/<rank>/<timestamp>/calls.zip      (container: the same paths as zip entries)
//   <output_dir>/op_capture_result/<rank>/<timestamp>/tensors/<content>.pth   (dedupe: bytes that calls share;
//                                                                               in a container: entries of that name)
//
// <op> is the call's name with "::" and "/" replaced by "." . Folders: each file is written to a temporary name
// (".tmp" suffix) and renamed, so a file with a final name is complete. Container: an append-only stored zip whose
// finished entries survive kill -9 (a reader that finds no central directory walks the local headers); `unzip` gives
// the folders back. <timestamp> is local time as 2024-08-06--11-41; when that folder exists already (another run in the
// same minute) "-2", "-3", ... is appended: a folder belongs to a single scope of a single process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "calls/capture_format.h"
#include "tensor/value.h"

namespace op_tools {

// The files of a call. A second backward pass over the same call (retain_graph=True) has ".2", a third ".3"
// before the extension: grad_inputs.2.pth.
enum class CallFile : uint8_t { kInput, kOutput, kGradInputs, kGradOutputs, kMeta };

struct CallKey {
  std::string op;  // the call's name as users know it: torch.Tensor.mul, aten::add.Tensor
  uint64_t id = 0;
  std::string side = {};  // a folder below the call's own: "device" and "cpu" of a comparison
};

// The writing side. One thread at a time (the writer thread). Throws Error with path and system message (disk full, no
// permission, path too long, folder gone).
class OP_TOOLS_API CallStore {
 public:
  // `dedupe`: bytes of tensors are stored once by content, and calls refer to them (pth/content_store.h).
  static std::unique_ptr<CallStore> create(CaptureFormat format, const std::string& output_dir, int64_t rank,
                                           bool dedupe = false);
  // Folders in a folder that is there already.
  static std::unique_ptr<CallStore> in_folder(std::string root);
  virtual ~CallStore() = default;

  // Writes a file of a call. Returns the path that people see: ".../torch.Tensor.mul/9/input.pth".
  virtual std::string write(const CallKey& key, CallFile file, uint32_t pass, const Value& value) = 0;
  virtual std::string write_text(const CallKey& key, CallFile file, uint32_t pass, std::string_view text) = 0;
  // Everything written so far is readable after this (the container gets its directory). More may follow.
  virtual void flush() = 0;
  virtual const std::string& root() const = 0;  // .../<timestamp>
  virtual uint64_t bytes_written() const = 0;
};

// The reading side: a captured call, in a folder or a container, ours or ditorch's. Reading is lazy and const.
class OP_TOOLS_API StoredCall {
 public:
  virtual ~StoredCall() = default;
  virtual const std::string& path() const = 0;  // for messages: folder, or container path + "!" + entry folder
  virtual bool has(CallFile file, uint32_t pass = 0) const = 0;
  virtual uint64_t size(CallFile file, uint32_t pass = 0) const = 0;  // of a file that it has, in bytes
  virtual Value read(CallFile file, uint32_t pass = 0) const = 0;     // .pth; throws Error
  virtual std::string read_text(CallFile file) const = 0;             // meta.json; throws Error
};

// Calls of an operator that OpCapture saved, by the account of its run, and those of them that are still there.
struct AccountedCalls {
  std::string run;    // its folder
  std::string calls;  // of its calls, for people: ".../OP/ID", ".../calls.zip!OP/ID"
  std::string op;
  uint64_t saved = 0, present = 0;
};
struct FoundCalls {
  std::vector<std::unique_ptr<StoredCall>> calls;  // by capture id where the folder name is a number, then by path
  std::vector<std::string> problems;  // "path: reason": containers cut off, folders without input.pth, temporary files
  uint64_t shared_bytes = 0;          // of tensors that calls share (dedupe)
  std::vector<AccountedCalls> accounted;  // of the runs that have an account and lie in `path` as a whole

  // Adds a sentence to `problems` for each run of which accounted calls are missing.
  OP_TOOLS_API void name_missing();
};
// Every captured call at or below `path` (a call's folder, any folder above, a container file, or a call in a container
// as open_call() takes it). Symbolic links below `path` are not followed: links to files of calls, and to folders that
// are not at or below `path`, are problems. Throws Error when path does not exist or cannot be read at all.
OP_TOOLS_API FoundCalls find_calls(const std::string& path);

// The call at `path`: its folder, or ".../calls.zip!torch.Tensor.mul/9". Throws Error when a container cannot be read
// or has no such call; which files a folder has is for the caller to ask.
OP_TOOLS_API std::unique_ptr<StoredCall> open_call(const std::string& path);

// A .pth file by its path, in a call's folder: bytes that it shares with other calls come from the run's folder
// above.
OP_TOOLS_API Value read_call_file(const std::string& path);

// Writes every call at or below `from` (as find_calls) to folders in `to`, each with all its bytes in its own files. A
// call has the same operator and number there; calls of several runs lie in folders of their runs. Returns how many;
// `problems` gets those of find_calls, and the calls that could not be exported, with the reason. Throws Error when
// `to` cannot be written.
OP_TOOLS_API size_t export_calls(const std::string& from, const std::string& to, std::vector<std::string>* problems);

}  // namespace op_tools
