"""How recordings are laid out for the kernels: visits, tables, compressions, collocation."""
