#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/ones_ops.h>
#include <ATen/ops/rand_ops.h>
#include <c10/core/SymNodeImpl.h>

#include <set>

#include "catch.h"
#include "tensor/ivalue.h"

using namespace op_tools;

namespace {

const c10::FunctionSchema& schema_of(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema();
}

const c10::Argument& argument_of(const char* op, const char* overload, const char* name) {
  const auto& schema = schema_of(op, overload);
  return schema.arguments().at(schema.argumentIndexWithName(name).value());
}

at::Tensor ones(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::_ops::ones::call(c10::fromIntArrayRefSlow(sizes), dtype, {}, {}, {});
}
at::Tensor scalar_tensor(double number, at::ScalarType dtype) {
  return at::_ops::full::call({}, number, dtype, {}, {}, {});
}

// A symbolic int, as tracing makes them.
struct SymbolicNode : c10::SymNodeImpl {
  bool is_int() override { return true; }
};

struct Bound {
  bool fits;
  c10::IValue ivalue;
  std::string why;
};
Bound fit(const Value& value, const c10::Argument& argument, Binding binding = Binding::kPython) {
  Bound bound;
  bound.fits = to_ivalue(value, argument, &bound.ivalue, &bound.why, binding);
  return bound;
}

// There and back, by the schema that the value belongs to.
void check_round_trip(const c10::IValue& ivalue, const c10::Argument& argument) {
  const Value value = to_value(ivalue, *argument.real_type());
  const Bound back = fit(value, argument, Binding::kDispatcher);
  INFO(argument << ": " << ivalue << " " << back.why);
  REQUIRE(back.fits);
  CHECK(back.ivalue.tagKind() == ivalue.tagKind());
  if (ivalue.isTensor()) {
    CHECK(back.ivalue.toTensor().is_same(ivalue.toTensor()));
  } else if (ivalue.isGenerator()) {
    CHECK(at::Tensor(back.ivalue.toGenerator().get_state()).equal(at::Tensor(ivalue.toGenerator().get_state())));
  } else if (ivalue.isTensorList()) {
    CHECK(back.ivalue.toTensorVector().at(0).is_same(ivalue.toTensorVector().at(0)));
  } else if (ivalue.isOptionalTensorList()) {
    CHECK(back.ivalue.toOptionalTensorVector().at(0)->is_same(*ivalue.toOptionalTensorVector().at(0)));
    CHECK(!back.ivalue.toOptionalTensorVector().at(1).has_value());
  } else {
    if (ivalue.isList()) CHECK(*back.ivalue.type() == *ivalue.type());
    CHECK(back.ivalue == ivalue);
  }
}

// Some value of a schema's type, as a caller of the dispatcher would put it on the stack; none for
// the types that have no form in a file.
std::optional<c10::IValue> sample(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return ones({2});
    case c10::TypeKind::BoolType:
      return true;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return int64_t{3};
    case c10::TypeKind::FloatType:
      return 2.5;
    case c10::TypeKind::ComplexType:
      return c10::complex<double>(1, 2);
    case c10::TypeKind::NumberType:
      return at::Scalar(7);
    case c10::TypeKind::StringType:
      return "mean";
    case c10::TypeKind::ScalarTypeType:
      return at::kBFloat16;
    case c10::TypeKind::LayoutType:
      return at::kSparse;
    case c10::TypeKind::MemoryFormatType:
      return at::MemoryFormat::ChannelsLast;
    case c10::TypeKind::QSchemeType:
      return c10::IValue(at::kPerChannelAffine);
    case c10::TypeKind::DeviceObjType:
      return c10::Device("cuda:3");
    case c10::TypeKind::GeneratorType:
      return at::detail::createCPUGenerator(17);
    case c10::TypeKind::OptionalType:
      return sample(*type.containedType(0));
    case c10::TypeKind::ListType: {
      const auto& element = *type.containedType(0);
      switch (element.kind()) {
        case c10::TypeKind::TensorType:
          return c10::List<at::Tensor>({ones({2}), ones({3})});
        case c10::TypeKind::OptionalType:
          return c10::List<std::optional<at::Tensor>>({ones({2}), std::nullopt});
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType:
          return c10::List<int64_t>({4, 5});
        case c10::TypeKind::FloatType:
          return c10::List<double>({0.5, 1.5});
        case c10::TypeKind::BoolType:
          return c10::List<bool>({true, false});
        case c10::TypeKind::StringType:
          return c10::List<std::string>({"a", "b"});
        case c10::TypeKind::NumberType: {
          c10::impl::GenericList numbers(c10::NumberType::get());
          numbers.push_back(1);
          numbers.push_back(0.5);
          return numbers;
        }
        default:
          return std::nullopt;
      }
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

TEST_CASE("every default value of every schema survives the way to a Value and back", "[ivalue]") {
  size_t checked = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op->hasSchema()) continue;
    for (const auto& argument : op->schema().arguments()) {
      if (!argument.default_value()) continue;
      check_round_trip(*argument.default_value(), argument);
      ++checked;
    }
  }
  CHECK(checked > 2000);  // that the walk walks
}

TEST_CASE("every argument of every schema takes a value of its type, and gives it back", "[ivalue]") {
  size_t checked = 0;
  std::set<std::string> without_form;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op->hasSchema() || name.name.rfind("aten::", 0) != 0) continue;
    for (const auto& argument : op->schema().arguments()) {
      const auto ivalue = sample(*argument.real_type());
      if (ivalue) {
        check_round_trip(*ivalue, argument);
        ++checked;
      } else {
        without_form.insert(argument.real_type()->repr_str());
      }
    }
  }
  CHECK(checked > 9000);
  CHECK(without_form == std::set<std::string>{"Storage", "Stream", "List[__torch__.torch.classes.rnn.CellParamsBase]"});
}

TEST_CASE("the schema's type tells the meaning of an int", "[ivalue]") {
  const auto of = [](const char* argument) {
    return to_value(int64_t{1}, *argument_of("aten::zeros_like", "", argument).real_type());
  };
  CHECK(*of("dtype").get_if<at::ScalarType>() == at::kChar);
  CHECK(*of("layout").get_if<at::Layout>() == at::kSparse);
  CHECK(*of("memory_format").get_if<at::MemoryFormat>() == at::MemoryFormat::Preserve);
  CHECK(*to_value(int64_t{1}, *argument_of("aten::softmax", "int", "dim").real_type()).get_if<int64_t>() == 1);
}

TEST_CASE("a value without a form in a file becomes Unsupported, with a reason", "[ivalue]") {
  const auto& storage = argument_of("aten::set_", "source_Storage", "source");
  const Value from_storage = to_value(ones({2}).storage(), *storage.real_type());
  REQUIRE(from_storage.is<Unsupported>());
  CHECK(from_storage.get_if<Unsupported>()->type == "Storage");
  CHECK(!from_storage.get_if<Unsupported>()->why.empty());
  CHECK(!fit(from_storage, storage).fits);

  const auto& stream = argument_of("aten::record_stream", "", "s");
  const Value from_stream = to_value(c10::Stream(c10::Stream::DEFAULT, c10::Device("cuda:0")), *stream.real_type());
  REQUIRE(from_stream.is<Unsupported>());
  CHECK(from_stream.get_if<Unsupported>()->type == "Stream");

  const auto& size = argument_of("aten::zeros", "", "size");
  const c10::SymInt symbolic(c10::SymNode(c10::make_intrusive<SymbolicNode>()));
  CHECK(to_value(symbolic, *size.real_type()->containedType(0)).is<Unsupported>());
}

TEST_CASE("a wrapped number is a number, and becomes a wrapped number again", "[ivalue]") {
  const auto& other = argument_of("aten::add", "Tensor", "other");
  const auto numbers = {at::Scalar(true), at::Scalar(2), at::Scalar(0.5), at::Scalar(c10::complex<double>(1, 2))};
  for (const at::Scalar& number : numbers) {
    const at::Tensor wrapped = at::native::wrapped_scalar_tensor(number);
    const Value value = to_value(wrapped, *other.real_type());
    CHECK_FALSE(value.is<at::Tensor>());
    CHECK_FALSE(fit(value, other, Binding::kPython).fits);
    const Bound back = fit(value, other, Binding::kDispatcher);
    REQUIRE(back.fits);
    CHECK(back.ivalue.toTensor().unsafeGetTensorImpl()->is_wrapped_number());
    CHECK(back.ivalue.toTensor().scalar_type() == wrapped.scalar_type());
    CHECK(back.ivalue.toTensor().equal(wrapped));
  }
  CHECK(to_value(scalar_tensor(2, at::kDouble), *other.real_type()).is<at::Tensor>());
}

TEST_CASE("an undefined tensor is None, and comes back only for the dispatcher", "[ivalue]") {
  const auto& self = argument_of("aten::add", "Tensor", "self");
  CHECK(to_value(at::Tensor(), *self.real_type()).is<None>());
  CHECK_FALSE(fit(None{}, self, Binding::kPython).fits);
  const Bound back = fit(None{}, self, Binding::kDispatcher);
  REQUIRE(back.fits);
  CHECK(back.ivalue.isTensor());
  CHECK_FALSE(back.ivalue.toTensor().defined());

  const Bound optional = fit(None{}, argument_of("aten::linear", "", "bias"));
  REQUIRE(optional.fits);
  CHECK(optional.ivalue.isNone());
}

TEST_CASE("numbers are taken and refused as Python's argument parser does", "[ivalue]") {
  const auto& dim = argument_of("aten::softmax", "int", "dim");
  const auto& length = argument_of("aten::narrow", "", "length");
  const auto& p = argument_of("aten::dropout", "", "p");
  const auto& fill = argument_of("aten::full", "", "fill_value");
  const auto& train = argument_of("aten::dropout", "", "train");

  SECTION("int") {
    CHECK(fit(3, dim).ivalue.toInt() == 3);
    CHECK(fit(scalar_tensor(3, at::kInt), dim).ivalue.toInt() == 3);
    CHECK_FALSE(fit(true, dim).fits);
    CHECK_FALSE(fit(1.0, dim).fits);
    CHECK_FALSE(fit(scalar_tensor(1, at::kFloat), dim).fits);
    CHECK_FALSE(fit(scalar_tensor(1, at::kBool), dim).fits);
    CHECK_FALSE(fit(ones({1}, at::kLong), dim).fits);
    CHECK(fit(ones({1}, at::kLong), length).ivalue.toInt() == 1);  // a SymInt takes a single element
    CHECK_FALSE(fit(None{}, dim).fits);
  }
  SECTION("float") {
    CHECK(fit(1, p).ivalue.toDouble() == 1.0);
    CHECK(fit(true, p).ivalue.toDouble() == 1.0);
    CHECK(fit(scalar_tensor(0.5, at::kFloat), p).ivalue.toDouble() == 0.5);
    CHECK_FALSE(fit(scalar_tensor(0.5, at::kFloat).requires_grad_(), p).fits);
    CHECK_FALSE(fit(ones({1}), p).fits);
    CHECK_FALSE(fit(c10::complex<double>(1, 0), p).fits);
    CHECK_FALSE(fit("0.5", p).fits);
  }
  SECTION("Scalar keeps the kind of number") {
    CHECK(fit(2, fill).ivalue.isInt());
    CHECK(fit(2.0, fill).ivalue.isDouble());
    CHECK(fit(true, fill).ivalue.isBool());
    CHECK(fit(c10::complex<double>(0, 1), fill).ivalue.isComplexDouble());
    CHECK(fit(scalar_tensor(1, at::kBool), fill).ivalue.isBool());
    CHECK(fit(scalar_tensor(4, at::kLong), fill).ivalue.toScalar().toLong() == 4);
    CHECK_FALSE(fit("1", fill).fits);
  }
  SECTION("bool takes nothing but a bool") {
    CHECK(fit(true, train).ivalue.toBool());
    CHECK_FALSE(fit(1, train).fits);
    CHECK_FALSE(fit(scalar_tensor(1, at::kBool), train).fits);
  }
  SECTION("Tensor takes no number") {
    CHECK_FALSE(fit(1, argument_of("aten::atan2", "", "other")).fits);
  }
}

TEST_CASE("lists are taken and refused as Python's argument parser does", "[ivalue]") {
  const auto& size = argument_of("aten::zeros", "", "size");
  const auto& kernel = argument_of("aten::max_pool2d", "", "kernel_size");
  const auto& dims = argument_of("aten::sum", "dim_IntList", "dim");
  const auto& tensors = argument_of("aten::cat", "", "tensors");
  const auto& scalars = argument_of("aten::_foreach_add", "ScalarList", "scalars");
  const std::vector<int64_t> two_three{2, 3};

  CHECK(fit(make_list({2, 3}), size).ivalue.toIntVector() == two_three);
  CHECK(fit(make_tuple({2, 3}), size).ivalue.toIntVector() == two_three);
  CHECK(fit(Size{{2, 3}}, size).ivalue.toIntVector() == two_three);
  CHECK(fit(make_tuple({2, ones({1}, at::kLong)}), size).ivalue.toIntVector() == std::vector<int64_t>{2, 1});
  CHECK_FALSE(fit(2, size).fits);  // no length in the schema: nothing to repeat it to
  CHECK_FALSE(fit(make_tuple({2, true}), size).fits);
  CHECK_FALSE(fit(make_tuple({2, 1.0}), size).fits);

  CHECK(fit(3, kernel).ivalue.toIntVector() == std::vector<int64_t>{3, 3});
  CHECK(fit(make_list({3}), kernel).ivalue.toIntVector() == std::vector<int64_t>{3});
  CHECK_FALSE(fit(true, kernel).fits);
  CHECK(fit(1, dims).ivalue.toIntVector() == std::vector<int64_t>{1});
  CHECK(fit(None{}, dims).ivalue.isNone());

  const at::Tensor tensor = ones({2});
  CHECK(fit(make_tuple({tensor}), tensors).ivalue.toTensorVector().at(0).is_same(tensor));
  CHECK_FALSE(fit(tensor, tensors).fits);
  CHECK_FALSE(fit(make_tuple({tensor, None{}}), tensors).fits);
  CHECK(fit(make_list({1, 2.0}), scalars).ivalue.toListRef()[1].isDouble());
  CHECK(fit(make_list({}), size).ivalue.isIntList());
}

TEST_CASE("dtype, layout, memory format and device are taken as Python's argument parser does", "[ivalue]") {
  const auto of = [](const char* name) -> const c10::Argument& { return argument_of("aten::zeros_like", "", name); };
  CHECK(fit(at::kHalf, of("dtype")).ivalue.toScalarType() == at::kHalf);
  CHECK(fit(None{}, of("dtype")).ivalue.isNone());
  CHECK_FALSE(fit("float16", of("dtype")).fits);
  CHECK_FALSE(fit(5, of("dtype")).fits);
  CHECK_FALSE(fit(0, of("layout")).fits);
  CHECK_FALSE(fit(at::kHalf, of("memory_format")).fits);
  CHECK(fit("cuda:1", of("device")).ivalue.toDevice() == c10::Device("cuda:1"));
  CHECK(fit(c10::Device("cpu"), of("device")).ivalue.toDevice().is_cpu());
  CHECK_THAT(fit("toaster", of("device")).why, Catch::Contains("'device'") && Catch::Contains("toaster"));
  CHECK_FALSE(fit(true, of("device")).fits);
}

TEST_CASE("a generator comes back in its saved state", "[ivalue]") {
  const auto& argument = argument_of("aten::rand", "generator", "generator");
  at::Generator generator = at::detail::createCPUGenerator(5);
  const auto draw = [](const at::Generator& from) { return at::_ops::rand_generator::call({4}, from, {}, {}, {}, {}); };
  draw(generator);
  const Value saved = to_value(generator, *argument.real_type());
  const at::Tensor next = draw(generator);
  const Bound back = fit(saved, argument);
  REQUIRE(back.fits);
  CHECK(draw(back.ivalue.toGenerator()).equal(next));

  const Value broken = Generator{c10::Device("cpu"), ones({3}, at::kByte)};
  CHECK_THAT(fit(broken, argument).why, Catch::Contains("'generator'"));
  const Value absent = Generator{c10::Device("cuda:0"), ones({3}, at::kByte)};
  const Bound refused = fit(absent, argument);
  if (!refused.fits) CHECK_THAT(refused.why, Catch::Contains("'generator'"));
}

TEST_CASE("a refusal names the argument, the type, the value and the place", "[ivalue]") {
  CHECK_THAT(fit(true, argument_of("aten::softmax", "int", "dim")).why,
             Catch::Contains("'dim'") && Catch::Contains("int") && Catch::Contains("True"));
  CHECK_THAT(fit(make_list({1, "x"}), argument_of("aten::zeros", "", "size")).why,
             Catch::Contains("element 1") && Catch::Contains("'x'"));
}
