// The language that the program is written in, as the core asks it: where the program stands, its models, its
// exceptions, its warnings. A program in C++ has the defaults here, which know nothing; Python's bindings install
// theirs when the package is imported (bindings/python_host.cpp). Any thread may ask, until the process ends. An answer
// may wait for the language's own lock: the caller holds no lock of the core's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"

namespace op_tools {

struct NamedTensor;          // record/named_tensors.h
struct Value;                // tensor/value.h
enum class Phase : uint8_t;  // hooks/op_call.h

// Of the innermost line of the user's own code the text "file:line function", and the path of the innermost module in
// whose forward() this thread is: "ResNet.layer3.0.conv1". nullptr: there is none, or it was not asked for. The strings
// live until the process ends.
struct Place {
  const std::string *line = nullptr, *module = nullptr;
};

// How the programs of op_tools are called here, as words of a shell (base/own_command.h).
struct OwnCommands {
  std::string op_tools = "op-tools", replay = "run_op_from_data";
};

class OP_TOOLS_API Host {
 public:
  virtual ~Host() = default;

  // Waits for no lock: a thread asks that watches hung threads.
  virtual const OwnCommands& own_commands();

  // Of every call that a tool takes, so it is one pass over the program's stack.
  virtual Place place(bool /*line*/, bool /*module*/) { return {}; }
  // Puts the user's lines of this thread into `lines`, the innermost first, as many as there is room for; how many
  // there are. Per captured call; the strings live as those of a Place.
  virtual size_t stack(std::span<const std::string*> /*lines*/) { return 0; }
  // Writes the stacks of all threads to a file with system calls alone: no lock, no memory. It may fail with a signal
  // where a thread changes its stack meanwhile. nullptr: there is no such function.
  using StackDump = void (*)(int descriptor);
  virtual StackDump stack_dump() { return nullptr; }

  // An exception that is not of the code which it ended (stop_program.h).
  virtual bool is_of_program(const std::exception& /*caught*/) { return false; }
  // Of an exception of the language, which may have no room to tell it; else its what().
  virtual std::string text_of(const std::exception& caught) { return caught.what(); }
  // Functions of the program's own, not of torch, pack the tensors that autograd saves on this thread.
  virtual bool packs_saved_tensors() { return false; }
  // The language's warnings on this thread are not given, nor noted as given, until the object is freed.
  virtual std::shared_ptr<void> quiet() { return nullptr; }
  // From now on threads that the language starts tell that they begin (thread_begins()); whether they do. Whenever a
  // scope is entered.
  virtual bool watch_threads() { return false; }

  // Names like that of a filter's item that matched nothing at that level: "; did you mean ...?" or "".
  virtual std::string advice(const std::string& /*item*/, const std::string& /*level*/) { return {}; }
  // How many floating point operations a call does; `sample` is that of CallDetails. Negative: not known. When rows are
  // made, not per call.
  virtual int64_t flops(std::string_view /*op*/, Phase /*phase*/, const Value& /*sample*/) { return -1; }

  // The facts of the program that stand in a recording's header: its version, the command line, the git commit, the
  // world size. A Dict; false: nothing.
  virtual bool program_facts(Value* /*facts*/) { return false; }
  // Of them the command that starts the program again, and its folder: no device is asked for these, no file is read.
  virtual bool program_start(Value* /*start*/) { return false; }
  // Parameters and buffers of the model that this thread is in (when they may have changed since this recording asked),
  // and the model's arguments; outside of models the gradients of all models' parameters. `recording`: a number of
  // its own in the process.
  virtual void named_tensors(uint64_t /*recording*/, std::vector<NamedTensor>* /*named*/) {}
  // Collectives of this process are put together (torch's _coalescing_manager) and begin later. Of every collective.
  virtual bool gathers_collectives() { return false; }
};

OP_TOOLS_API Host& host();
// Of an object that lives until the process ends, or until the host before it is installed again; nullptr: the
// defaults. Returns the host before it, likewise.
OP_TOOLS_API Host* install_host(Host* host);

}  // namespace op_tools
