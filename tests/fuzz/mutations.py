"""What people do to a model, and to the process around it. Each is a context that undoes itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import peft
import torch
from tests.fuzz.world import World
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Mutation = Callable[[World, Random], Any]


def _weight(world: World, chance: Random) -> tuple[torch.nn.Module, str]:
    """A module and the name of a parameter in it; those of the first layer more often, as everything passes through it."""
    names = [name for name, _ in world.model.named_parameters()]
    path, _, name = chance.choice(names).rpartition(".")
    return world.model.get_submodule(path), name


def _layer(world: World) -> Any:
    return world.model.model.layers[0]


@contextmanager
def write(world: World, chance: Random) -> Iterator[None]:
    module, name = _weight(world, chance)
    weight = getattr(module, name)
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(1.5) if chance.random() < 0.5 else weight.add_(0.25)
    yield
    with torch.no_grad():
        weight.copy_(kept)


@contextmanager
def write_data(world: World, chance: Random) -> Iterator[None]:
    module, name = _weight(world, chance)
    weight = getattr(module, name)
    kept = weight.detach().clone()
    weight.data.copy_(kept * 1.5) if chance.random() < 0.5 else weight.data.view(-1)[::2].mul_(-1)
    yield
    weight.data.copy_(kept)


@contextmanager
def replace(world: World, chance: Random) -> Iterator[None]:
    module, name = _weight(world, chance)
    own = getattr(module, name)
    setattr(module, name, torch.nn.Parameter(own.detach() * 1.5))
    yield
    setattr(module, name, own)


@contextmanager
def move_data(world: World, chance: Random) -> Iterator[None]:
    module, name = _weight(world, chance)
    weight = getattr(module, name)
    own = weight.data
    weight.data = own * 1.5
    yield
    weight.data = own


@contextmanager
def state_dict(world: World, chance: Random) -> Iterator[None]:
    kept = {name: value.detach().clone() for name, value in world.model.state_dict().items()}
    parts = [(module, dict(module._parameters)) for module in world.model.modules()]
    other = {name: value * 1.5 if value.is_floating_point() else value for name, value in kept.items()}
    assign = chance.random() < 0.5
    world.model.load_state_dict(other, assign=assign)
    world.model.tie_weights()
    yield
    if assign:
        for module, parameters in parts:
            module._parameters.update(parameters)
    else:
        world.model.load_state_dict(kept)


@contextmanager
def adapter(world: World, chance: Random) -> Iterator[None]:
    if world.adapted is not None:
        yield from _adapted(world, chance)
        return
    torch.manual_seed(chance.getrandbits(16))
    config = peft.LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False, r=4)
    wrapped = peft.get_peft_model(world.model, config)
    wrapped.add_adapter("other", config)
    world.adapted = wrapped.to(world.model.device, world.model.dtype).eval()
    if chance.random() < 0.4:
        with contextmanager(_adapted)(world, chance):
            yield
    else:
        yield
    if world.adapted is not None:
        wrapped.unload()
        world.adapted = None


def _adapted(world: World, chance: Random) -> Iterator[None]:
    wrapped, how = world.adapted, chance.choice(("switch", "disable", "scale", "remove"))
    if how == "switch":
        wrapped.set_adapter("other")
        yield
        wrapped.set_adapter("default")
    elif how == "disable":
        with wrapped.disable_adapter():
            yield
    elif how == "scale":
        layer = _layer(world).mlp.down_proj
        own = dict(layer.scaling)
        layer.scaling["default"] *= 2
        yield
        layer.scaling.update(own)
    else:
        wrapped.unload()
        world.adapted = None
        yield


@contextmanager
def dtype(world: World, chance: Random) -> Iterator[None]:
    own, kept = world.model.dtype, {name: value.detach().clone() for name, value in world.model.named_parameters()}
    world.model.to(chance.choice([other for other in (torch.bfloat16, torch.float16, torch.float32) if other != own]))
    yield
    world.model.to(own)
    with torch.no_grad():
        for name, value in world.model.named_parameters():
            value.copy_(kept[name])


@contextmanager
def device(world: World, chance: Random) -> Iterator[None]:
    world.model.to("cpu")
    if chance.random() < 0.5:  # there and back
        world.model.to(world.device)
    yield
    world.model.to(world.device)


@contextmanager
def stream(world: World, chance: Random) -> Iterator[None]:
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
        torch.cuda.synchronize()


@contextmanager
def mode(world: World, chance: Random) -> Iterator[None]:
    part = world.model if chance.random() < 0.5 else _layer(world).self_attn
    part.train()
    yield
    part.eval()


@contextmanager
def hook(world: World, chance: Random) -> Iterator[None]:
    mlp, how = _layer(world).mlp, chance.choice(("after", "before", "forward", "every", "watching"))
    if how == "forward":
        eager = mlp.forward
        mlp.forward = lambda *args, **kwargs: eager(*args, **kwargs) * 1.5
        yield
        del mlp.forward
        return
    if how == "after":
        handle = mlp.register_forward_hook(lambda module, inputs, output: output * 1.5)
    elif how == "before":
        handle = mlp.down_proj.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 1.5,))
    elif how == "watching":
        handle = world.model.model.norm.register_forward_hook(lambda module, inputs, output: None)
    else:

        def doubled(module: Any, inputs: Any, output: Any) -> Any:
            return output * 1.5 if module is mlp else None

        handle = torch.nn.modules.module.register_module_forward_hook(doubled)
    yield
    handle.remove()


@contextmanager
def attention(world: World, chance: Random) -> Iterator[None]:
    own = world.model.config._attn_implementation
    # Some models know only eager attention.
    world.model.set_attn_implementation("sdpa" if own == "eager" and world.model._supports_sdpa else "eager")
    yield
    world.model.set_attn_implementation(own)


@contextmanager
def autocast(world: World, chance: Random) -> Iterator[None]:
    kind = world.model.device.type
    with torch.autocast(kind, dtype=torch.float16 if kind == "cuda" else torch.bfloat16):
        yield


@contextmanager
def flags(world: World, chance: Random) -> Iterator[None]:
    how = chance.choice(("tf32", "reduced", "deterministic", "precision", "efficient", "denormal"))
    matmul = torch.backends.cuda.matmul
    if how == "tf32":
        own = matmul.allow_tf32
        matmul.allow_tf32 = not own
        yield
        matmul.allow_tf32 = own
    elif how == "reduced":
        own = matmul.allow_bf16_reduced_precision_reduction
        matmul.allow_bf16_reduced_precision_reduction = not own
        yield
        matmul.allow_bf16_reduced_precision_reduction = own
    elif how == "deterministic":
        torch.use_deterministic_algorithms(True, warn_only=True)
        with warnings.catch_warnings(action="ignore"):
            yield
        torch.use_deterministic_algorithms(False)
    elif how == "precision":
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        yield
        torch.set_float32_matmul_precision(before)
    elif how == "efficient":
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        yield
        torch.backends.cuda.enable_mem_efficient_sdp(True)
    else:
        torch.set_flush_denormal(True)
        yield
        torch.set_flush_denormal(False)


@contextmanager
def configuration(world: World, chance: Random) -> Iterator[None]:
    norm, mlp = world.model.model.norm, _layer(world).mlp
    places = [(norm, "variance_epsilon"), (norm, "eps"), (mlp, "act_fn"), (world.model.config, "use_cache")]
    places += [(world.model.generation_config, "temperature"), (world.model.generation_config, "repetition_penalty")]
    owner, name = chance.choice([(owner, name) for owner, name in places if hasattr(owner, name)])
    own = getattr(owner, name)
    setattr(owner, name, torch.nn.Tanh() if name == "act_fn" else False if name == "use_cache" else 1.3)
    yield
    setattr(owner, name, own)


@contextmanager
def functions(world: World, chance: Random) -> Iterator[None]:
    """Somebody's own attention or own forward, under the name that transformers looks up."""
    how = chance.choice(("product", "registered", "class"))
    if how == "product":
        product = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = lambda *args, **kwargs: product(*args, **kwargs) * 1.5
        yield
        functional.scaled_dot_product_attention = product
    elif how == "registered":
        name = world.model.config._attn_implementation
        known = ALL_ATTENTION_FUNCTIONS.get(name) if name in ALL_ATTENTION_FUNCTIONS else None
        if known is None:
            yield
            return

        def scaled(*args: Any, **kwargs: Any) -> Any:
            output, weights = known(*args, **kwargs)
            return output * 1.5, weights

        ALL_ATTENTION_FUNCTIONS[name] = scaled
        yield
        ALL_ATTENTION_FUNCTIONS[name] = known
    else:
        kind: Any = type(_layer(world).mlp)
        own = kind.forward
        kind.forward = lambda self, hidden: own(self, hidden) * 1.5
        yield
        kind.forward = own


@contextmanager
def gradients(world: World, chance: Random) -> Iterator[None]:
    with chance.choice((torch.enable_grad, torch.no_grad, torch.inference_mode))():
        yield


class _Watching(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 1.5 if function is functional.linear else result


@contextmanager
def torch_mode(world: World, chance: Random) -> Iterator[None]:
    with _Watching() if chance.random() < 0.5 else torch.device(world.model.device):
        yield


MUTATIONS: dict[str, Mutation] = {
    "write": write,
    "write-data": write_data,
    "replace": replace,
    "move-data": move_data,
    "state-dict": state_dict,
    "adapter": adapter,
    "dtype": dtype,
    "mode": mode,
    "hook": hook,
    "attention": attention,
    "autocast": autocast,
    "flags": flags,
    "configuration": configuration,
    "functions": functions,
    "gradients": gradients,
    "torch-mode": torch_mode,
    "device": device,
    "stream": stream,
}
