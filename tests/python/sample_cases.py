"""Cases of op-tools conformance that several tests use."""

from op_tools._conformance.case import Case, TensorSpec

SIM = ("--device", "sim", "--import", "op_tools.sim_device")


def tensor(*shape, dtype="float32", **more):
    return TensorSpec(shape, dtype, **more)


def case(op, *args, variant="function", gradient=False, kwargs=None, models=None):
    return Case.make("mine", op, variant, args, kwargs or {}, gradient=gradient, models=models or {})


MM = case("torch.mm", tensor(7, 9), tensor(9, 5), models={"net": 3})
SOFTMAX = case("torch.nn.functional.softmax", tensor(6, 8, requires_grad=True), -1, gradient=True, models={"net": 1})
ADD = case("torch.add", tensor(4, 6, dtype="int64", values="integers 0 9"), 2)
ADD_ = case("torch.Tensor.add_", tensor(4, 6, dtype="float64"), 2, variant="inplace")
OUT = case("torch.mul", tensor(4, 6), tensor(6), variant="out", kwargs={"out": tensor(4, 6)})
