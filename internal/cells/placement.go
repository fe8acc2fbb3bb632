package cells

import (
	"cmp"
	"math"
	"slices"
)

// Share is the weight of a cell in a [Placement].
type Share struct {
	Name   string
	Weight int // 0 to MaxWeight; a cell with 0 is given nothing
}

// Placement divides keys among cells by weighted rendezvous hashing (Thaler and Ravishankar 1998; weights by
// Schindelhauer and Schomaker 2005): a key has an exponentially distributed value for each cell, and belongs
// to the cell with the smallest quotient of value and weight. Logarithms of other processors may differ in the last of
// 53 bits, which decides nothing in practice. Safe for concurrent use.
type Placement struct {
	names   []string
	seeds   []uint64
	weights []float64
}

// NewPlacement returns the placement by shares, in any order. Names must differ.
func NewPlacement(shares []Share) *Placement {
	sorted := slices.Clone(shares)
	slices.SortFunc(sorted, func(a, b Share) int { return cmp.Compare(a.Name, b.Name) })
	p := &Placement{}
	for _, s := range sorted {
		if s.Weight > 0 {
			p.names = append(p.names, s.Name)
			p.seeds = append(p.seeds, hash(s.Name))
			p.weights = append(p.weights, float64(s.Weight))
		}
	}
	return p
}

// Of returns the name of the cell of a key, or "" if no cell has a weight.
func (p *Placement) Of(key string) (cell string) {
	h, least := hash(key), math.Inf(1)
	for i, name := range p.names {
		uniform := (float64(mix(h^p.seeds[i])>>11) + 0.5) / (1 << 53) // above 0, below 1
		if value := -math.Log(uniform) / p.weights[i]; value < least {
			cell, least = name, value
		}
	}
	return cell
}

// hash is FNV-1a, mixed because its upper bits depend little on the last bytes.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
