#include "tensor/ivalue.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Generator.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include <limits>
#include <optional>
#include <utility>

namespace op_tools {
namespace {

using c10::TypeKind;

Value unsupported(const c10::IValue& ivalue, std::string why) {
  return Unsupported{ivalue.tagKind(), std::move(why)};
}

Value from_scalar(const at::Scalar& scalar) {
  if (scalar.isBoolean()) return scalar.toBool();
  if (scalar.isComplex()) return scalar.toComplexDouble();
  if (scalar.isFloatingPoint()) return scalar.toDouble();
  if (scalar.type() == at::kUInt64 && scalar.toUInt64() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Unsupported{"Int", "an unsigned number beyond 63 bits"};
  }
  return scalar.toLong();
}

Value from_tensor(const at::Tensor& tensor) {
  if (!is_wrapped_number(tensor)) return tensor;
  switch (tensor.scalar_type()) {  // read in place: an item() here would be an operator call
    case at::kBool:
      return *tensor.const_data_ptr<bool>();
    case at::kLong:
      return *tensor.const_data_ptr<int64_t>();
    case at::kDouble:
      return *tensor.const_data_ptr<double>();
    case at::kComplexDouble:
      return *tensor.const_data_ptr<c10::complex<double>>();
    default:
      return tensor;
  }
}

Value from_generator(const at::Generator& generator) {
  if (!generator.defined()) return None{};
  return Generator{generator.device(), at::Tensor(generator.get_state())};
}

// The value's own tag decides: for numbers, strings, tensors, and where the schema's type is a
// variable.
Value from_tag(const c10::IValue& ivalue) {
  if (ivalue.isTensor()) return from_tensor(ivalue.toTensor());
  if (ivalue.isBool()) return ivalue.toBool();
  if (ivalue.isInt()) return ivalue.toInt();
  if (ivalue.isDouble()) return ivalue.toDouble();
  if (ivalue.isComplexDouble()) return ivalue.toComplexDouble();
  if (ivalue.isScalar() && !ivalue.isSymInt() && !ivalue.isSymFloat() && !ivalue.isSymBool()) {
    return from_scalar(ivalue.toScalar());
  }
  if (ivalue.isString()) return ivalue.toStringRef();
  if (ivalue.isDevice()) return ivalue.toDevice();
  if (ivalue.isGenerator()) return from_generator(ivalue.toGenerator());
  if (ivalue.isObject()) return Unsupported{ivalue.toObjectRef().name(), "an object of a TorchScript class"};
  if (ivalue.isSymInt() || ivalue.isSymFloat() || ivalue.isSymBool()) {
    return unsupported(ivalue, "a symbolic number, without a value");
  }
  return unsupported(ivalue, "has no form in a file");
}

Value from_ivalue(const c10::IValue& ivalue, const c10::Type* type) {
  if (ivalue.isNone()) return None{};
  while (type && type->kind() == TypeKind::OptionalType) type = type->containedType(0).get();
  const TypeKind kind = type ? type->kind() : TypeKind::AnyType;
  if (ivalue.isInt()) {
    switch (kind) {
      case TypeKind::ScalarTypeType:
        return ivalue.toScalarType();
      case TypeKind::LayoutType:
        return ivalue.toLayout();
      case TypeKind::MemoryFormatType:
        return ivalue.toMemoryFormat();
      case TypeKind::QSchemeType:
        return ivalue.toQScheme();
      default:
        return ivalue.toInt();
    }
  }
  if (ivalue.isList()) {
    const c10::Type* element = kind == TypeKind::ListType ? type->containedType(0).get() : nullptr;
    Values items;
    items.reserve(ivalue.toListRef().size());
    for (const auto& item : ivalue.toListRef()) items.push_back(from_ivalue(item, element));
    return make_list(std::move(items));
  }
  if (ivalue.isTuple()) {
    const auto& elements = ivalue.toTupleRef().elements();
    const bool typed = kind == TypeKind::TupleType && type->containedTypes().size() == elements.size();
    Values items;
    items.reserve(elements.size());
    for (size_t i = 0; i < elements.size(); ++i) {
      items.push_back(from_ivalue(elements[i], typed ? type->containedType(i).get() : nullptr));
    }
    return make_tuple(std::move(items));
  }
  if (ivalue.isGenericDict()) {
    const bool typed = kind == TypeKind::DictType;
    std::vector<std::pair<Value, Value>> items;
    for (const auto& entry : ivalue.toGenericDict()) {
      items.emplace_back(from_ivalue(entry.key(), typed ? type->containedType(0).get() : nullptr),
                         from_ivalue(entry.value(), typed ? type->containedType(1).get() : nullptr));
    }
    return make_dict(std::move(items));
  }
  return from_tag(ivalue);
}

// Binds a value to a type; the recursion of to_ivalue().
class Binder {
 public:
  explicit Binder(Binding binding) : binding_(binding) {}

  bool bind(const Value& value, const c10::Type& type, std::optional<int32_t> repeat, c10::IValue* out) {
    switch (type.kind()) {
      case TypeKind::OptionalType:
        if (value.is<None>()) return *out = c10::IValue(), true;
        return bind(value, *type.containedType(0), repeat, out);
      case TypeKind::TensorType:
        return bind_tensor(value, out) || refuse(value, type);
      case TypeKind::BoolType:
        return bind_as<bool>(value, out) || refuse(value, type);
      case TypeKind::StringType:
        return bind_as<std::string>(value, out) || refuse(value, type);
      case TypeKind::IntType:
        return bind_int(value, /*one_element=*/false, out) || refuse(value, type);
      case TypeKind::SymIntType:
        return bind_int(value, /*one_element=*/true, out) || refuse(value, type);
      case TypeKind::FloatType:
      case TypeKind::SymFloatType:
      case TypeKind::ComplexType:
      case TypeKind::NumberType:
        return bind_number(value, type.kind(), out) || refuse(value, type);
      case TypeKind::ScalarTypeType:
        return bind_as<at::ScalarType>(value, out) || refuse(value, type);
      case TypeKind::LayoutType:
        return bind_as<at::Layout>(value, out) || refuse(value, type);
      case TypeKind::MemoryFormatType:
        return bind_as<at::MemoryFormat>(value, out) || refuse(value, type);
      case TypeKind::QSchemeType:
        return bind_as<at::QScheme>(value, out) || refuse(value, type);
      case TypeKind::DeviceObjType:
        return bind_device(value, type, out);
      case TypeKind::GeneratorType:
        return bind_generator(value, type, out);
      case TypeKind::ListType:
        return bind_list(value, type, repeat, out);
      default:
        return refuse(value, type);
    }
  }

  const std::string& why() const { return why_; }

 private:
  // Keeps the first, innermost reason.
  bool refuse(const Value& value, const c10::Type& type) {
    if (why_.empty()) why_ = "expected " + type.repr_str() + ", got " + describe(value);
    return false;
  }
  bool refuse(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    return false;
  }

  template <class T>
  bool bind_as(const Value& value, c10::IValue* out) {
    const T* held = value.get_if<T>();
    if (held) *out = c10::IValue(*held);
    return held != nullptr;
  }

  bool bind_tensor(const Value& value, c10::IValue* out) {
    if (bind_as<at::Tensor>(value, out)) return true;
    if (binding_ != Binding::kDispatcher) return false;
    if (value.is<None>()) return *out = c10::IValue(at::Tensor()), true;
    c10::IValue number;
    if (!bind_number(value, TypeKind::NumberType, &number)) return false;
    *out = c10::IValue(at::native::wrapped_scalar_tensor(number.toScalar()));
    return true;
  }

  // `one_element`: a SymInt takes a tensor of any dimensions with a single element, an int a tensor of no
  // dimensions.
  bool bind_int(const Value& value, bool one_element, c10::IValue* out) {
    if (bind_as<int64_t>(value, out)) return true;
    const at::Tensor* tensor = value.get_if<at::Tensor>();
    if (!tensor || !at::isIntegralType(tensor->scalar_type(), /*includeBool=*/false) ||
        !(one_element ? tensor->numel() == 1 : tensor->dim() == 0)) {
      return false;
    }
    *out = c10::IValue(tensor->item().toLong());
    return true;
  }

  bool bind_number(const Value& value, TypeKind kind, c10::IValue* out) {
    std::optional<at::Scalar> scalar;
    if (const auto* number = value.get_if<bool>()) scalar = *number;
    if (const auto* number = value.get_if<int64_t>()) scalar = *number;
    if (const auto* number = value.get_if<double>()) scalar = *number;
    if (const auto* number = value.get_if<c10::complex<double>>()) scalar = *number;
    const at::Tensor* tensor = value.get_if<at::Tensor>();
    if (tensor && tensor->dim() == 0 && !tensor->requires_grad()) scalar = tensor->item();
    if (!scalar) return false;
    switch (kind) {
      case TypeKind::NumberType:
        *out = c10::IValue(*scalar);
        return true;
      case TypeKind::ComplexType:
        *out = c10::IValue(scalar->toComplexDouble());
        return true;
      default:
        if (scalar->isComplex()) return false;
        *out = c10::IValue(scalar->toDouble());
        return true;
    }
  }

  bool bind_device(const Value& value, const c10::Type& type, c10::IValue* out) {
    if (bind_as<c10::Device>(value, out)) return true;
    if (const auto* text = value.get_if<std::string>()) {
      *out = c10::IValue(c10::Device(*text));  // c10::Error when there is no such device: see to_ivalue
      return true;
    }
    if (const auto* index = value.get_if<int64_t>()) {
      const auto accelerator = at::getAccelerator();
      if (!accelerator) {
        return refuse("device " + std::to_string(*index) + " means an accelerator, and this machine has none");
      }
      *out = c10::IValue(c10::Device(*accelerator, static_cast<c10::DeviceIndex>(*index)));
      return true;
    }
    return refuse(value, type);
  }

  bool bind_generator(const Value& value, const c10::Type& type, c10::IValue* out) {
    const auto* saved = value.get_if<Generator>();
    if (!saved) return refuse(value, type);
    at::Generator generator = saved->device.is_cpu() ? at::detail::createCPUGenerator()
                                                     : at::globalContext().defaultGenerator(saved->device).clone();
    generator.set_state(saved->state);
    *out = c10::IValue(std::move(generator));
    return true;
  }

  bool bind_list(const Value& value, const c10::Type& type, std::optional<int32_t> repeat, c10::IValue* out) {
    const c10::TypePtr& element = type.containedType(0);
    c10::impl::GenericList list(stored_type(element));
    c10::IValue item;
    if (const auto* size = value.get_if<Size>()) {
      for (const int64_t extent : size->sizes) {
        if (!bind(extent, *element, {}, &item)) return false;
        list.push_back(item);
      }
    } else if (const Values* items = value.is<Set>() ? nullptr : sequence_items(value)) {
      for (size_t i = 0; i < items->size(); ++i) {
        if (!bind_element((*items)[i], *element, &item)) {
          why_ = "element " + std::to_string(i) + ": " + why_;
          return false;
        }
        list.push_back(item);
      }
    } else if (repeat && *repeat > 0 && repeats(element->kind())) {
      if (!bind(value, *element, {}, &item)) return false;
      for (int32_t i = 0; i < *repeat; ++i) list.push_back(item);
    } else {
      return refuse(value, type);
    }
    *out = c10::IValue(list);
    return true;
  }

  // In a list of ints the parser takes a tensor with a single element, whatever its dimensions.
  bool bind_element(const Value& value, const c10::Type& type, c10::IValue* out) {
    if (type.kind() == TypeKind::IntType) {
      return bind_int(value, /*one_element=*/true, out) || refuse(value, type);
    }
    return bind(value, type, {}, out);
  }

  static bool repeats(TypeKind kind) {
    return kind == TypeKind::IntType || kind == TypeKind::SymIntType || kind == TypeKind::FloatType ||
           kind == TypeKind::BoolType;
  }

  // The element type of the list that the dispatcher's unboxing expects: the enumerations are ints
  // there.
  static c10::TypePtr stored_type(const c10::TypePtr& type) {
    switch (type->kind()) {
      case TypeKind::SymIntType:
      case TypeKind::ScalarTypeType:
      case TypeKind::LayoutType:
      case TypeKind::MemoryFormatType:
        return c10::IntType::get();
      default:
        return type;
    }
  }

  Binding binding_;
  std::string why_;
};

}  // namespace

bool is_wrapped_number(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.is_cpu() &&
         tensor.numel() == 1;
}

Value to_value(const c10::IValue& ivalue, const c10::Type& type) {
  try {
    return from_ivalue(ivalue, &type);
  } catch (const c10::Error& error) {  // a generator without state, a tensor subclass that refuses
    return unsupported(ivalue, error.what_without_backtrace());
  }
}

bool to_ivalue(const Value& value, const c10::Argument& argument, c10::IValue* out, std::string* why, Binding binding) {
  Binder binder(binding);
  std::string reason;
  try {
    if (binder.bind(value, *argument.real_type(), argument.N(), out)) return true;
    reason = binder.why();
  } catch (const c10::Error& error) {  // a device that is not there, a generator state of another kind
    reason = error.what_without_backtrace();
  }
  *why = "argument '" + argument.name() + "': " + reason;
  return false;
}

}  // namespace op_tools
