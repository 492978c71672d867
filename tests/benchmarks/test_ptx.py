"""Comparison of the PTX of two versions."""

from benchmarks import ptx

KERNEL = """
.version 8.7
    // .globl {name}
.visible .entry {name}(
    .param .u64 .ptr .global .align 1 {name}_param_0,
    .param .u32 {name}_param_1
)
{{
    .loc 1 {line} 5  // {name}.py
    ld.param.b64 %rd1, [{name}_param_0];
$L__tmp{line}:
    {instruction};
    ret;
}}
    .file 1 "/{name}.py"
    .section .debug_abbrev
    {{
.b8 {line}
    }}
"""


def kernel(name: str, line: int, instruction: str = "add.f32 %r1, %r2, %r3") -> str:
    return ptx.normalize(KERNEL.format(name=name, line=line, instruction=instruction))


def test_renamed_and_moved_kernel_compares_equal():
    assert kernel("forward_kernel", 3) == kernel("convolve", 40)
    assert "forward_kernel" not in kernel("forward_kernel", 3) and ".loc" not in kernel("forward_kernel", 3)


def test_changed_instruction_and_changed_parameter_are_found():
    assert kernel("forward_kernel", 3) != kernel("forward_kernel", 3, "mul.f32 %r1, %r2, %r3")
    assert kernel("k", 3, "mov [k_param_0]") != kernel("k", 3, "mov [k_param_1]")


def test_names_are_kept_if_a_longer_name_contains_them():
    assert "kernel_symbol" in kernel("kernel", 3, "call kernel_symbol")


def test_differences_are_listed_by_case(capsys, monkeypatch):
    refs = {"a": {"same": "x", "other": "x", "old": "x"}, "b": {"same": "x", "other": "y", "new": "x"}}
    monkeypatch.setattr(ptx, "compile_ref", refs.__getitem__)
    assert ptx.main(["a", "b"]) == 1 and ptx.main(["a", "a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "changed: other",
        "appeared: new",
        "disappeared: old",
        "1 equal, 1 changed, 1 appeared, 1 disappeared",
    ]
    assert lines[4] == "3 equal, 0 changed, 0 appeared, 0 disappeared"
