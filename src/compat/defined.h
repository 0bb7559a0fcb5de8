#pragma once

// Does this torch define a type that is declared here for versions without it?

namespace op_tools::compat {

template <typename Type>
concept Defined = requires {
  sizeof(Type);
};

}  // namespace op_tools::compat
