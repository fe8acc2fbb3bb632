package watch

import (
	"context"
	"slices"
)

// Plan is the difference between the registry and a file of watches.
type Plan struct {
	Add, Change []Watch // to put
	Remove      []Watch
	Same        int
}

// Plan compares watches with the registry. It removes the unlisted watches for which prune returns true; nil
// keeps all. It returns the errors that [Registry.Apply] would return. Watches stay silenced unless their
// NotifyURL changes.
func (r *Registry) Plan(ctx context.Context, watches []Watch, prune func(Watch) bool) (Plan, error) {
	wanted := map[string]bool{}
	for _, w := range watches {
		wanted[position{w.Repo.Key(), w.Key().field()}.String()] = true
	}
	var plan Plan
	current := map[string]Watch{}
	var staying []Watch
	for q := (Query{Limit: maxPage}); ; {
		page, err := r.List(ctx, q)
		if err != nil {
			return Plan{}, err
		}
		for _, w := range page.Watches {
			at := position{w.Repo.Key(), w.Key().field()}.String()
			switch current[at] = w; {
			case wanted[at]:
			case prune != nil && prune(w):
				plan.Remove = append(plan.Remove, w)
			default:
				staying = append(staying, w)
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	for _, w := range watches {
		was, ok := current[position{w.Repo.Key(), w.Key().field()}.String()]
		if ok && was.NotifyURL == w.NotifyURL {
			w.Silenced = was.Silenced
		}
		after, err := w.document()
		if err != nil {
			return Plan{}, err
		}
		before, _ := was.document() // "" if it did not exist
		switch {
		case !ok:
			plan.Add = append(plan.Add, w)
		case after != before:
			plan.Change = append(plan.Change, w)
		default:
			plan.Same++
		}
	}
	together := slices.Concat(staying, watches)
	return plan, checkCompatible(together, func(i int) string { return together[i].App })
}

// ApplyPlan applies p like [Registry.Apply].
func (r *Registry) ApplyPlan(ctx context.Context, p Plan) error {
	remove := make([]Key, len(p.Remove))
	for i, w := range p.Remove {
		remove[i] = w.Key()
	}
	_, _, err := r.Apply(ctx, slices.Concat(p.Add, p.Change), remove)
	return err
}
