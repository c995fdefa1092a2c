"""The layout of recordings for the kernels: visits, tables, compressions, collocation."""
