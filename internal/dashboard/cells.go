package dashboard

// Cell is a cell of the directory.
type Cell struct {
	Name    string
	State   string
	Here    bool    // it is the one that the dashboard shows
	Share   float64 // of the repositories, by the weights of now; 0 to 1
	Watched int64   // repositories
	Out, In string  // repositories that are left to move to other cells and to this one; "" if there are none
	Error   string  // why it does not answer; "" if it does
}

// Percent is the cell's share of the repositories, 0 to 100.
func (c Cell) Percent() float64 { return 100 * c.Share }
