#include "hooks/argument_key.h"

#include "tensor/ivalue.h"

namespace op_tools {

void ArgumentKey::add_wrapped_number(const at::Tensor& number) {
  add(Part::kWrappedNumber);
  const c10::ScalarType dtype = number.scalar_type();
  append(&dtype, sizeof dtype);
  if (with_numbers_) append(number.const_data_ptr(), number.element_size());
}

bool ArgumentKey::add_ivalue(const c10::IValue& value) {
  if (value.isTensor()) {
    is_wrapped_number(value.toTensor()) ? add_wrapped_number(value.toTensor()) : add_tensor(value.toTensor());
  } else if (value.isNone()) {
    add(Part::kNone);
  } else if (value.isInt()) {
    add(Part::kInt, value.toInt());
  } else if (value.isBool()) {
    add(Part::kBool, value.toBool());
  } else if (value.isDouble()) {
    add(Part::kFloat, value.toDouble());
  } else if (value.isString()) {
    add_text(Part::kText, value.toStringRef());
  } else if (value.isDevice()) {
    add_device(value.toDevice());
  } else if (value.isList()) {
    const c10::ArrayRef<c10::IValue> items = value.toListRef();
    add_group(Part::kList, items.size());
    for (const c10::IValue& item : items) {
      if (!add_ivalue(item)) return false;
    }
  } else {
    return false;
  }
  return true;
}

}  // namespace op_tools
