"""Which launch parameters are best for a rung, a shape, a dtype and a GPU?"""
