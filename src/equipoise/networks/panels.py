r"""Matrix products for compiled loops on a CPU: a panel of a few rows and neighbouring columns at a time.

A training step of small flows is some thirty products of matrices with about a hundred rows. A library's products would
be called from outside the compiled loop, and would multiply what a mask holds at zero. Here a product is a loop over
panels, so that its caller says how many terms each panel has:

.. math:: C_{r, c} = \sum_{k < n} A_{r, k} B_{k, c}, \qquad r < \text{ROWS}, \quad c < \text{WIDE or NARROW}.

The columns lie next to each other in memory; A may be read by rows or by columns. The sums of a panel stay in vector
registers, for which there is no word in Python: the loop over k is written in the compiler's own language. How large a
panel is depends on the processor's registers, so that results differ between kinds of processors by rounding.
"""

from __future__ import annotations

__all__ = ["NARROW", "ROWS", "WIDE", "narrow_panel", "wide_panel"]

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: With 32 registers of 16 numbers a panel has 8 × 32 sums, else 4 × 16 in registers of 8 or of 4.
_LARGE = bool(llvm.get_host_cpu_features().get("avx512f"))
ROWS, WIDE = (8, 32) if _LARGE else (4, 16)
#: Of what remains when columns are cut into wide panels; arrays are padded to a multiple of it.
NARROW = 16


def _written(module: Any, columns: int, whole: Any) -> Any:
    """The function of a module that writes a panel with so many columns; as one, it is compiled once for all its calls.

    Its arguments are three pointers (to C, A and B) and the distances of the rows of C, of the rows and the terms of A,
    and of the rows of B, and the number of terms.
    """
    number, lane = ir.FloatType(), ir.IntType(32)
    vector = ir.VectorType(number, columns)
    kind = ir.FunctionType(ir.VoidType(), [number.as_pointer()] * 3 + [whole] * 5)
    function = cgutils.get_or_insert_function(module, kind, f"equipoise_panel_{columns}")
    if function.blocks:
        return function
    function.linkage = "internal"
    function.attributes.add("noinline")
    fma = cgutils.get_or_insert_function(module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{columns}f32")
    into, left, right, stride, by_row, by_term, b_stride, terms = function.args
    before, body, after = (function.append_basic_block(name) for name in ("begin", "term", "end"))
    zero, undefined = ir.Constant(vector, [0.0] * columns), ir.Constant(vector, ir.Undefined)
    first_lane = ir.Constant(ir.VectorType(lane, columns), [0] * columns)

    builder = ir.IRBuilder(before)
    rows = [builder.gep(left, [builder.mul(by_row, ir.Constant(whole, r))]) for r in range(ROWS)]
    builder.cbranch(builder.icmp_signed(">", terms, ir.Constant(whole, 0)), body, after)

    builder.position_at_end(body)
    k = builder.phi(whole)
    sums = [builder.phi(vector) for _ in range(ROWS)]
    place = builder.gep(right, [builder.mul(k, b_stride)])
    values = builder.load(builder.bitcast(place, vector.as_pointer()))
    values.align = 4
    offset, added = builder.mul(k, by_term), []
    for one, row in zip(sums, rows, strict=True):
        factor = builder.load(builder.gep(row, [offset]))
        spread = builder.insert_element(undefined, factor, ir.Constant(lane, 0))
        spread = builder.shuffle_vector(spread, undefined, first_lane)
        added.append(builder.call(fma, [spread, values, one]))
    following = builder.add(k, ir.Constant(whole, 1))
    for phi, start, new in zip([k, *sums], [ir.Constant(whole, 0), *[zero] * ROWS], [following, *added], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(new, body)
    builder.cbranch(builder.icmp_signed("<", following, terms), body, after)

    builder.position_at_end(after)
    totals = [builder.phi(vector) for _ in range(ROWS)]
    for r, (total, new) in enumerate(zip(totals, added, strict=True)):
        total.add_incoming(zero, before)
        total.add_incoming(new, body)
        place = builder.gep(into, [builder.mul(stride, ir.Constant(whole, r))])
        builder.store(total, builder.bitcast(place, vector.as_pointer())).align = 4
    builder.ret_void()
    return function


def _panel(columns: int) -> Callable[..., Any]:
    """A call of the function that writes a panel, as `intrinsic` takes it."""

    def panel(
        context: Any, out: Any, at: Any, stride: Any, a: Any, a_at: Any, by_row: Any, by_term: Any, b: Any, b_at: Any,
        b_stride: Any, terms: Any,
    ) -> Any:  # fmt: skip
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def data(i: int) -> Any:
                """The pointer to the entry of the array i that the argument i + 1 names."""
                array = context.make_array(signature.args[i])(context, builder, arguments[i])
                return builder.gep(array.data, [arguments[i + 1]])

            _, _, stride, _, _, *distances, _, _, b_stride, terms = arguments
            write = _written(builder.module, columns, stride.type)
            builder.call(write, [data(0), data(3), data(7), stride, *distances, b_stride, terms])
            return context.get_dummy_value()

        whole = types.intp
        signature = types.void(out, whole, whole, a, whole, whole, whole, b, whole, whole, whole)
        return signature, code

    return panel


#: Write a panel of a product. Arguments: the array to write to, its first entry and the distance of its rows; the array
#: with A, its first entry, the distances of rows and of terms; that with B, its first entry and the distance of its
#: rows; and the number of terms. All arrays are contiguous float32, entries count from their first.
wide_panel: Any = intrinsic(_panel(WIDE))
narrow_panel: Any = intrinsic(_panel(NARROW))
