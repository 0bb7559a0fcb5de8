#include "torch_function_mode.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "compat/skip_next.h"
#include "error_text.h"
#include "hooks/argument_key.h"
#include "hooks/backward_source.h"
#include "hooks/chain.h"
#include "hooks/current_chain.h"
#include "hooks/error_origin.h"
#include "hooks/failed_backward.h"
#include "hooks/graph_frame.h"
#include "hooks/interceptor.h"
#include "hooks/op_call.h"
#include "interrupts.h"
#include "python_values.h"
#include "tensor/internal_guard.h"
#include "tensor/plain_tensor.h"

namespace op_tools::python {
namespace {

using ModeStack = at::impl::PythonTorchFunctionTLS;
using Modes = std::vector<std::shared_ptr<c10::SafePyObject>>;

// Modes that were taken off the stack, the topmost first, onto it again.
void put_back(Modes modes) {
  for (auto mode = modes.rbegin(); mode != modes.rend(); ++mode) ModeStack::push_onto_stack(std::move(*mode));
}

// The cached facts about a torch function, by object (not by address: Python makes an equal method-wrapper anew for
// each property access). The mask is that of a single chain, the last that asked.
struct Function {
  std::shared_ptr<const std::string> name;
  bool in_python;                     // a Python function: its inner calls can be torch calls of the program's
  PyObject* without_check = nullptr;  // owned; where torch cannot skip the check: a copy without it, or None
  uint64_t chain = 0;
  uint32_t mask = 0;
};

// The copy of op_tools/_torch/compat.py; None where there is none. A new reference.
PyObject* without_own_check(PyObject* function) {
  try {
    const py::object compat = py::module_::import("op_tools._torch.compat");
    return compat.attr("without_own_check")(py::handle(function)).release().ptr();
  } catch (const py::error_already_set&) {
    return py::none().release().ptr();
  }
}

class Functions {
 public:
  static Functions& get() {
    static Functions* functions = new Functions;  // leaked: calls may come until the interpreter ends
    return *functions;
  }

  // Valid until the next call.
  Function& find(PyObject* object) {
    if (PyObject* known = PyDict_GetItemWithError(index_, object)) return functions_[PyLong_AsSize_t(known)];
    const bool hashable = PyErr_Occurred() == nullptr;
    forget_error();
    Function fresh{std::make_shared<std::string>(function_name(object)), PyFunction_Check(object) != 0};
    // Two dozen calls that read the tensor to be printed are none of the program's.
    if (*fresh.name == "torch.Tensor.__repr__" || *fresh.name == "torch.Tensor.__format__") fresh.in_python = false;
    if constexpr (!compat::SkipsNext<>) {
      if (fresh.in_python) fresh.without_check = without_own_check(object);
    }
    if (!hashable || functions_.size() >= kMost) {  // closures made by the million: known only for this call
      one_off_ = std::move(fresh);
      return one_off_;
    }
    functions_.push_back(std::move(fresh));
    const py::int_ position(functions_.size() - 1);
    if (PyDict_SetItem(index_, object, position.ptr()) != 0) forget_error();
    return functions_.back();
  }

 private:
  static constexpr size_t kMost = 100'000;
  PyObject* const index_ = PyDict_New();
  std::vector<Function> functions_;
  Function one_off_;
};

uint32_t mask_of(Function& function, const Chain& chain) {
  if (function.chain != chain.number) {
    function.mask = chain.mask_for(*function.name);
    function.chain = chain.number;
  }
  return function.mask;
}

// In anomaly mode a node that is made while a backward pass runs a node of the program's holds that node as its parent.
// Where the engine then reports NaN of the new node, torch never frees the parent, nor the program's graph behind it.
// `first`: the sequence number of the first node that the run made.
void forget_parents(const Value& result, uint64_t first) {
  using torch::autograd::PyAnomalyMetadata;
  if (!torch::autograd::AnomalyMode::is_enabled() || torch::autograd::get_current_graph_task_id() < 0) return;
  std::unordered_set<torch::autograd::Node*> nodes;
  std::vector<torch::autograd::Node*> open;
  const auto add = [&](torch::autograd::Node* node) {
    if (node && node->sequence_nr() >= first && nodes.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& tensor : flatten_tensors(result)) add(tensor.grad_fn().get());
  while (!open.empty()) {
    torch::autograd::Node* const node = open.back();
    open.pop_back();
    PyObject* const facts = static_cast<PyAnomalyMetadata*>(node->metadata())->dict();
    if (PyDict_DelItemString(facts, PyAnomalyMetadata::ANOMALY_PARENT_KEY) != 0) forget_error();
    for (const torch::autograd::Edge& edge : node->next_edges()) add(edge.function.get());
  }
}

// Python objects must die with the GIL held, and the runner may die anywhere: c10's holder takes care.
class PythonRunner final : public OpRunner {
 public:
  explicit PythonRunner(PyObject* function)
      : function_(py::reinterpret_borrow<py::object>(function).release().ptr(), getPyInterpreter()) {}

  Value run(const Value& args, const Value& kwargs) const override {
    for (const Value* values : {&args, &kwargs}) {
      if (const Unsupported* lost = first_unsupported(*values)) {
        throw Error("the call cannot be run again: " + lost->type + ": " + lost->why);
      }
    }
    const py::gil_scoped_acquire gil;
    const WithoutTorchFunction no_modes;
    try {
      const py::handle function(function_.ptr(getPyInterpreter()));
      const uint64_t first_node = at::sequence_number::peek();
      Value result = to_value(function(*py::tuple(to_python(args)), **py::dict(to_python(kwargs))));
      forget_parents(result, first_node);
      return result;
    } catch (const py::error_already_set& error) {
      if (is_from_outside(error)) throw;
      throw std::runtime_error(text_of_error(error));  // the exception object must not die where there is no GIL
    }
  }

 private:
  const c10::SafePyObject function_;
};

// Did it come out of the program's hook for saved tensors, which autograd called inside of the function?
bool is_of_saved_tensor_hook(const py::error_already_set& error) {
  const auto hooks = at::SavedTensorDefaultHooks::get_hooks();
  if (!hooks) return false;
  const py::object pack = py::reinterpret_borrow<py::object>(hooks->first.ptr(getPyInterpreter()));
  const py::object code = py::getattr(pack, "__code__", py::none());
  for (py::object at = error.trace(); at && !at.is_none(); at = at.attr("tb_next")) {
    if (py::object(at.attr("tb_frame").attr("f_code")).is(code)) return true;
  }
  return false;
}

// `who`: the program's own code, of which the error is.
class EndedByProgram final : public py::error_already_set {
 public:
  EndedByProgram(const py::error_already_set& error, const std::string& who)
      : py::error_already_set(error),
        message_(ended_by_program(who + " raised " + py::str(error.type().attr("__name__")).cast<std::string>())) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  const std::string message_;
};

// A torch-level call. Throws py::error_already_set when the function raised.
class PythonFrame : public Frame {
 public:
  // `rerun`: the function that a second run of the call calls.
  PythonFrame(PyObject* function, PyObject* rerun, PyObject* args, PyObject* kwargs, const Chain& chain)
      : function_(function),
        rerun_(rerun),
        args_(py::reinterpret_borrow<py::object>(args)),
        kwargs_(py::reinterpret_borrow<py::object>(kwargs)),
        chain_(chain),
        backward_(chain) {}

  Value args() override { return to_value(args_); }
  Value kwargs() override { return kwargs_ ? to_value(kwargs_) : make_dict({}); }
  Value result() override {
    if (!result_value_) result_value_ = result_ ? to_value(result_) : Value();
    return *result_value_;
  }

  bool add_arguments(ArgumentKey& key) override {
    return add_to_key(args_, key) && (!kwargs_ || add_to_key(kwargs_, key));
  }
  bool add_result(ArgumentKey& key) override { return result_ && add_to_key(result_, key); }

  void visit_inputs(Visit visit) override {
    visit_tensors(args_, visit);
    if (kwargs_) visit_tensors(kwargs_, visit);
  }
  void visit_result(Visit visit) override {
    if (result_) visit_tensors(result_, visit);
  }
  std::optional<c10::Device> named_device() override { return python::named_device(args_, kwargs_); }

  void prepare(OpCall& call) override {
    watch_ = chain_.wants(call.hooks, &Wants::aten_call);
    backward_.prepare(call);
  }

  void proceed() override {
    if (!watch_) return run();
    const interceptor::AtenWatch watch;
    run();
    aten_call_ = watch.whole_call(result());
  }

  void conclude(OpCall& call) override { backward_.conclude(call); }

  Value aten_call() override { return aten_call_; }
  bool is_identity() override { return backward_.is_identity(); }
  std::shared_ptr<const OpRunner> runner() override { return std::make_shared<PythonRunner>(rerun_); }

  PyObject* release_result() { return result_.release().ptr(); }

 private:
  void run() {
    result_ = py::reinterpret_steal<py::object>(PyObject_Call(function_, args_.ptr(), kwargs_.ptr()));
    if (result_) return;
    const py::error_already_set error;
    if (is_of_saved_tensor_hook(error)) throw EndedByProgram(error, "a hook for saved tensors");
    // A run of ours is quiet, and does not raise it.
    if (error.matches(PyExc_Warning)) throw EndedByProgram(error, "a filter for warnings");
    throw error;
  }

  PyObject* const function_;
  PyObject* const rerun_;
  py::object args_, kwargs_, result_;
  const Chain& chain_;
  BackwardSource backward_;
  bool watch_ = false;
  std::optional<Value> result_value_;
  Value aten_call_;
};

class PythonGraphFrame final : public PythonFrame, public GraphFrame {
 public:
  PythonGraphFrame(PyObject* compiled, PyObject* operators, PyObject* args, const py::list& held, const Chain& chain)
      : PythonFrame(compiled, operators, args, nullptr, chain),
        traits_{py::handle(operators).attr("has_unwritten_memory").cast<bool>(),
                py::handle(operators).attr("adds_product").cast<bool>()} {
    for (const py::handle result : held) {
      held_.push_back(THPVariable_Check(result.ptr()) ? THPVariable_Unpack(result.ptr()) : at::Tensor());
    }
  }
  const std::vector<at::Tensor>& held_results() const override { return held_; }
  GraphTraits traits() const override { return traits_; }

 private:
  std::vector<at::Tensor> held_;
  const GraphTraits traits_;
};

PyObject* run_chain(const Chain& chain, uint32_t mask, OpCall& call, PythonFrame& frame) {
  try {
    chain.run(mask, call);
  } catch (py::error_already_set& error) {
    error.restore();  // the function's own exception, with its traceback
    return nullptr;
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());  // of an executor: IndexError stays IndexError
    return nullptr;
  }
  return frame.release_result();
}

// `name` is held while the function runs, which may free the object that it came with.
PyObject* through_chain(PyObject* function, PyObject* args, PyObject* kwargs,
                        const std::shared_ptr<const std::string> name,  // NOLINT(performance-unnecessary-value-param)
                        const Chain& chain, uint32_t mask) {
  PythonFrame frame(function, function, args, kwargs, chain);
  const GuardedState thread;
  OpCall call(next_call_id(), Level::kTorch, Phase::kForward, *name, frame, thread);
  return run_chain(chain, mask, call, frame);
}

std::shared_ptr<c10::SafePyObject> g_mode;
thread_local std::shared_ptr<int> tl_scopes;  // of this thread; nullptr: it had none yet

// Python code that takes modes off the stack and puts them back makes a new holder, so the object itself is compared.
bool is_our_mode(const std::shared_ptr<c10::SafePyObject>& mode) {
  return mode->ptr(getPyInterpreter()) == g_mode->ptr(getPyInterpreter());
}

// The mode of torch.set_default_device(); `with torch.device(...)` is another mode.
bool is_default_device(const std::shared_ptr<c10::SafePyObject>& mode) {
  const py::object holder = py::getattr(py::module_::import("torch"), "_GLOBAL_DEVICE_CONTEXT", py::none());
  return py::getattr(holder, "device_context", py::none()).ptr() == mode->ptr(getPyInterpreter());
}

// Takes our mode off the stack, if it is at this place or above.
void take_mode_from(int64_t place) {
  Modes above;
  while (ModeStack::stack_len() > place) {
    std::shared_ptr<c10::SafePyObject> top = ModeStack::pop_stack();
    if (is_our_mode(top)) break;
    above.push_back(std::move(top));
  }
  put_back(std::move(above));
}

// Our mode off this thread's stack, if it is there, and back at its place: below the modes that are above it.
class OurModeOffStack {
 public:
  OurModeOffStack() {
    Modes above;
    while (ModeStack::stack_len() > 0 && !taken_) {
      std::shared_ptr<c10::SafePyObject> top = ModeStack::pop_stack();
      taken_ = is_our_mode(top);
      if (!taken_) above.push_back(std::move(top));
    }
    above_ = above.size();
    put_back(std::move(above));
  }
  ~OurModeOffStack() {
    if (!taken_ || !tl_scopes || *tl_scopes == 0) return;  // the last scope was left meanwhile
    Modes above;
    while (above.size() < above_ && ModeStack::stack_len() > 0) above.push_back(ModeStack::pop_stack());
    ModeStack::push_onto_stack(g_mode);
    put_back(std::move(above));
  }
  OurModeOffStack(const OurModeOffStack&) = delete;
  OurModeOffStack& operator=(const OurModeOffStack&) = delete;

 private:
  bool taken_ = false;
  size_t above_ = 0;
};

PyObject* checked(PyObject* result) {
  if (!result) throw py::error_already_set();
  return result;
}

// The left-out Python functions that this thread is in. torch.Tensor.unflatten calls the method of the same name in C,
// which torch looks up by name and hands to us as torch.Tensor.unflatten again: letting that function run with the mode
// on would never end. A function that a backward pass calls, as a re-entrant checkpoint calls torch.autograd.backward,
// is another call than that which started the pass.
class LeftOut {
 public:
  explicit LeftOut(PyObject* function) : function_(function), outer_(innermost()) { innermost() = this; }
  ~LeftOut() { innermost() = outer_; }
  LeftOut(const LeftOut&) = delete;
  LeftOut& operator=(const LeftOut&) = delete;

  static bool is_running(PyObject* function) {
    for (const LeftOut* outer = innermost(); outer; outer = outer->outer_) {
      if (outer->function_ == function && outer->pass_ == torch::autograd::get_current_graph_task_id()) return true;
    }
    return false;
  }

 private:
  static LeftOut*& innermost() {
    thread_local LeftOut* running = nullptr;
    return running;
  }
  PyObject* const function_;
  const int pass_ = torch::autograd::get_current_graph_task_id();  // -1: outside of backward passes
  LeftOut* const outer_;
};

// An engine's thread frees a pass that failed within microseconds, if the machine lets it run.
constexpr std::chrono::milliseconds kEngineFrees{100};

// The error that a left-out function raised goes to the program: failures meanwhile in backward passes are reported
// with it, if the engine raised it. Code of the program that the engine called (a hook on a tensor, a custom function)
// is further down in the traceback. `result`: nullptr where it raised; given back. While a FailedBackwards collects.
PyObject* with_failures_reported(PyObject* result) {
  if (result) return result;
  py::error_already_set error;
  py::object last = error.trace();
  while (last && !last.is_none() && !last.attr("tb_next").is_none()) last = last.attr("tb_next");
  const bool of_engine =
      last && !last.is_none() && error.matches(PyExc_Exception) &&
      py::str(last.attr("tb_frame").attr("f_code").attr("co_name")).cast<std::string>() == "_engine_run_backward";
  if (of_engine) {
    const std::string text = py::str(error.value());
    const py::gil_scoped_release no_gil;  // backward runs on the CPU
    for (const FailedBackward& report : FailedBackwards::take(kEngineFrees)) report(text);
  }
  error.restore();
  return nullptr;
}

// Calls a left-out function that is written in Python. A filter may admit its inner calls, so the mode stays on the
// stack and only skips the function itself. Not for calls with subclasses among the arguments (`types`): skipping would
// bypass their own __torch_function__. Where torch cannot skip a check, a copy of the function without the check is
// called; where there is no such copy, `without_check` is None, and its callees are not seen.
PyObject* call_with_mode_on(PyObject* function, PyObject* without_check, PyObject* args, PyObject* kwargs) {
  const LeftOut running(function);
  const FailedBackwards collecting;
  if (without_check == Py_None) return with_failures_reported(PyObject_Call(function, args, kwargs));
  const int64_t place = ModeStack::stack_len();
  ModeStack::push_onto_stack(g_mode);
  const bool skipped_before = compat::exchange_skip_next(true);
  PyObject* const result = PyObject_Call(without_check ? without_check : function, args, kwargs);
  compat::exchange_skip_next(skipped_before);
  // A scope that was left inside took the mode with it. A mode of the program's may be above it: a mode that an
  // interrupt left there between its push and its pop.
  take_mode_from(place);
  return with_failures_reported(result);
}

// Does an argument's class override __torch_function__? Functions that are written in Python list plain tensors as
// well, and parameters, whose class has it disabled.
bool has_subclasses(PyObject* types) {
  static PyObject* const disabled =
      py::object(py::module_::import("torch._C").attr("_disabled_torch_function_impl")).release().ptr();
  const py::object all = py::reinterpret_steal<py::object>(PySequence_Fast(types, ""));
  if (!all) {
    forget_error();
    return true;
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(all.ptr()); ++i) {
    const py::handle type = PySequence_Fast_GET_ITEM(all.ptr(), i);
    if (type.ptr() == THPVariableClass) continue;
    if (!py::getattr(type, "__torch_function__", py::none()).is(py::handle(disabled))) return true;
  }
  return false;
}

// torch takes a mode off its stack in Python code, and puts it back when that code's frames are freed, if an interrupt
// ended them: a scope that was left in between has not found it. Of the main thread; Python has no such calls for
// others.
int take_lost_mode(void*) {
  if (!tl_scopes || *tl_scopes == 0) take_mode_from(0);
  return 0;
}

// An exception that arrived for the program while code of ours ran comes before the call's result, and before its
// error.
PyObject* after_held(PyObject* result) {
  try {
    throw_held();
    return result;
  } catch (py::error_already_set& held) {
    Py_XDECREF(result);
    held.restore();
    return nullptr;
  }
}

template <class Test>
bool any_tensor(PyObject* args, PyObject* kwargs, const Test& test) {
  bool any = false;
  const auto look = [&](const at::Tensor& tensor) { any = any || test(tensor); };
  visit_tensors(args, look);
  if (kwargs) visit_tensors(kwargs, look);
  return any;
}

// Compilers and exporters call functions on tensors without numbers: these are no calls of the program's, for no tool.
bool is_of_trace(PyObject* args, PyObject* kwargs) {
  return computes_shapes_only() ||
         any_tensor(args, kwargs, [](const at::Tensor& tensor) { return op_tools::is_of_trace(tensor); });
}

// __torch_function__(func, types, args=(), kwargs=None)
PyObject* torch_function(PyObject*, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  if (count < 2 || names != nullptr) {
    PyErr_SetString(PyExc_TypeError, "__torch_function__ of op_tools takes (func, types, args, kwargs) by position");
    return nullptr;
  }
  static PyObject* const empty = PyTuple_New(0);
  PyObject* const function = values[0];
  PyObject* const args = count > 2 ? values[2] : empty;
  PyObject* const kwargs = count > 3 && values[3] != Py_None ? values[3] : nullptr;
  const CurrentChain current(Level::kTorch);
  const Chain* const chain = current.get();
  if (!chain) {
    if (!tl_scopes || *tl_scopes == 0) Py_AddPendingCall(&take_lost_mode, nullptr);
    return PyObject_Call(function, args, kwargs);
  }
  Function& known = Functions::get().find(function);
  const uint32_t mask = mask_of(known, *chain);
  if (mask == 0) {
    if (known.in_python && !LeftOut::is_running(function) && !has_subclasses(values[1])) {
      return after_held(call_with_mode_on(function, known.without_check, args, kwargs));
    }
    return after_held(PyObject_Call(function, args, kwargs));
  }
  if (is_of_trace(args, kwargs)) {
    if (!computes_shapes_only() && any_tensor(args, kwargs, is_jagged)) chain->leave_jagged(mask);
    return after_held(PyObject_Call(function, args, kwargs));
  }
  return through_chain(function, args, kwargs, known.name, *chain, mask);
}

PyMethodDef kMethods[] = {
    {"__torch_function__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&torch_function)),
     METH_FASTCALL | METH_KEYWORDS, "Hands the call to the tools that are on."},
    {nullptr, nullptr, 0, nullptr}};

PyObject* g_torch_function = nullptr;  // the method of the only mode

// torch looks the method up twice for each call, once by a string that it makes anew: Python's cache of a type's
// attributes, which goes by the string's address, never has it, and the method is bound each time.
PyObject* attribute_of_mode(PyObject* mode, PyObject* name) {
  if (g_torch_function && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, kMethods[0].ml_name) == 0) {
    Py_INCREF(g_torch_function);
    return g_torch_function;
  }
  return PyObject_GenericGetAttr(mode, name);
}

// By a name of C's, for whom asks so: torch need not make a string then.
PyObject* named_attribute_of_mode(PyObject* mode, char* name) {
  if (g_torch_function && std::strcmp(name, kMethods[0].ml_name) == 0) {
    Py_INCREF(g_torch_function);
    return g_torch_function;
  }
  const py::object text = py::reinterpret_steal<py::object>(PyUnicode_FromString(name));
  return text ? PyObject_GenericGetAttr(mode, text.ptr()) : nullptr;
}

// Without torch's wrapper around it: that makes Python forget, for each name, which warnings it has given once.
py::handle resolver() {
  static PyObject* const resolve = [] {
    const py::object wrapped = py::module_::import("torch.overrides").attr("resolve_name");
    return py::getattr(wrapped, "__wrapped__", wrapped).release().ptr();
  }();
  return resolve;
}

}  // namespace

WithoutTorchFunction::WithoutTorchFunction() : before_(ModeStack::get_disabled_state()) {
  ModeStack::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
}
WithoutTorchFunction::~WithoutTorchFunction() {
  ModeStack::set_disabled_state(before_);
}

void set_torch_function_mode(const py::object& mode) {
  g_mode = std::make_shared<c10::SafePyObject>(py::object(mode).release().ptr(), getPyInterpreter());
  g_torch_function = PyCFunction_New(kMethods, mode.ptr());  // torch wants a method of the mode's own
  if (!g_torch_function) throw py::error_already_set();
  // Not in the type's dict: there torch.compile finds a function in Python.
  PyTypeObject* const type = Py_TYPE(mode.ptr());
  type->tp_getattro = &attribute_of_mode;
  type->tp_getattr = &named_attribute_of_mode;
  PyType_Modified(type);
  resolver()(
      py::none());  // torch collects its functions, under filters for warnings of its own: before the program runs
}

ModeOnStack::ModeOnStack() : scopes_(tl_scopes ? tl_scopes : tl_scopes = std::make_shared<int>(0)) {
  if ((*scopes_)++ > 0) return;
  take_mode_from(0);  // a mode that was lost
  // To the bottom: a mode of the user's that is on already takes the top off when it is left, and would take ours. The
  // bottom itself belongs to set_default_device(), which looks for its mode there.
  Modes above;
  while (ModeStack::stack_len() > 0) above.push_back(ModeStack::pop_stack());
  if (!above.empty() && is_default_device(above.back())) {
    ModeStack::push_onto_stack(std::move(above.back()));
    above.pop_back();
  }
  ModeStack::push_onto_stack(g_mode);
  put_back(std::move(above));
}

ModeOnStack::~ModeOnStack() {
  if (scopes_ != tl_scopes || --*scopes_ > 0) return;
  // Not found: the scope is left inside an intercepted call, where torch has taken the mode off for the time of the
  // call. It comes back, finds no chain and does nothing.
  take_mode_from(0);
}

py::tuple graph_choices() {
  py::tuple choices(2);
  const Level levels[] = {Level::kTorch, Level::kAten};
  for (size_t i = 0; i < 2; ++i) {
    const CurrentChain current(levels[i]);
    choices[i] = current.get() ? py::object(py::str(to_string(current.get()->compiled()))) : py::none();
  }
  return choices;
}

py::object run_graph(const std::string& name, const py::object& compiled, const py::object& operators,
                     const py::tuple& args, const py::list& held) {
  const CurrentChain current(Level::kTorch);
  const Chain* const chain = current.get();
  const uint32_t mask = chain && !is_of_trace(args.ptr(), nullptr) ? chain->mask_for_graph(name) : 0;
  if (mask == 0) {
    return py::reinterpret_steal<py::object>(checked(after_held(PyObject_Call(compiled.ptr(), args.ptr(), nullptr))));
  }
  const OurModeOffStack inside;  // as in any call that a hook sees
  PythonGraphFrame frame(compiled.ptr(), operators.ptr(), args.ptr(), held, *chain);
  const GuardedState thread;
  OpCall call(next_call_id(), Level::kTorch, Phase::kForward, name, frame, thread);
  call.is_graph = true;
  return py::reinterpret_steal<py::object>(checked(after_held(run_chain(*chain, mask, call, frame))));
}

py::object run_engine(const py::function& function, const py::args& args, const py::kwargs& kwargs) {
  const FailedBackwards collecting;
  PyObject* const called = PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr());
  return py::reinterpret_steal<py::object>(checked(after_held(with_failures_reported(called))));
}

std::string function_name(py::handle function) {
  try {
    const py::object name = to_its_end([&] { return resolver()(function); });
    if (!name.is_none()) {
      auto text = py::str(name).cast<std::string>();
      // torch.mm and torch.spmm are equal objects to Python, and the list that torch looks up keeps the last of them.
      if (PyCFunction_Check(function.ptr()) && text.compare(0, 6, "torch.") == 0 &&
          text.find('.', 6) == std::string::npos) {
        const auto own = py::str(function.attr("__name__")).cast<std::string>();
        const py::object same = py::getattr(py::module_::import("torch"), own.c_str(), py::none());
        if (same.equal(function)) text = "torch." + own;
      }
      // Operators called directly resolve to "aten.add.Tensor"; users write torch.ops.aten.add.Tensor.
      return text.compare(0, 6, "torch.") == 0 ? text : "torch.ops." + text;
    }
    const auto module = py::getattr(function, "__module__", py::none());
    const auto qualified = py::getattr(function, "__qualname__", py::getattr(function, "__name__", py::none()));
    if (!qualified.is_none()) {
      auto text = py::str(qualified).cast<std::string>();
      // Generated functions that torch.overrides does not list are still torch.<name> to their callers.
      constexpr std::string_view kGenerated = "_VariableFunctionsClass.";
      if (text.compare(0, kGenerated.size(), kGenerated) == 0) return "torch." + text.substr(kGenerated.size());
      return module.is_none() ? text : py::str(module).cast<std::string>() + "." + text;
    }
    return to_its_end([&] { return py::repr(function).cast<std::string>(); });
  } catch (const std::exception&) {
    return "unnamed";
  }
}

}  // namespace op_tools::python
