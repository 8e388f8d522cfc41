"""Every kernel test runs in two ways: on a CUDA device (`-m gpu`), or in Triton's interpreter without one."""

import pytest
import torch


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu), "interpreter"])
def device(request: pytest.FixtureRequest) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if request.param == "cuda":
        if not has_cuda:
            pytest.skip("no CUDA device")
        return torch.device("cuda")
    if has_cuda:
        pytest.skip("with a CUDA device the kernels are compiled, not interpreted")
    return torch.device("cpu")
