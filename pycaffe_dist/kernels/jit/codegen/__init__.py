"""Turns specifications into machine code: LLVM IR, targets, object files, addresses."""
