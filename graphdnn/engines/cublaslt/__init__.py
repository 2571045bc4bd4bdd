"""Matrix products with a small epilogue by cuBLASLt; nothing of the library is imported before a device is used."""
