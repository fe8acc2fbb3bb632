package object

// flipped returns content with one bit changed in its i-th byte.
func flipped(content []byte, i int) []byte {
	damaged := append([]byte(nil), content...)
	damaged[i] ^= 0x40
	return damaged
}
