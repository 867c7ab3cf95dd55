"""`leaner plan`: shapes for a budget, their costs, and what published sources say of them. Arithmetic, no tensors."""
