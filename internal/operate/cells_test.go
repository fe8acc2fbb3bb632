package operate_test

import (
	"cmp"
	"errors"
	"slices"
	"testing"

	"lockstep/internal/cells"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
)

// TestRowsBeforeAnErrorStay reads rows until there is no more time.
func TestRowsBeforeAnErrorStay(t *testing.T) {
	set, late := cells.Single(redistest.Start(t).Client(), cells.Member{Namespace: "lockstep:{0}:"}), errors.New("late")
	list, _, _, err := operate.Gather(t.Context(), set, 0, cmp.Compare[int], func(cells.Member) ([]int, bool, error) {
		return []int{1, 2}, false, late
	})
	if !errors.Is(err, late) || !slices.Equal(list, []int{1, 2}) {
		t.Errorf("got %v, %v", list, err)
	}
}
