package watch

import (
	"context"
	"slices"
)

// Plan is what it takes to make the registry what a file says.
type Plan struct {
	Add, Change []Watch // to be put
	Remove      []Watch
	Same        int
}

// Plan compares watches with the registry. With prune, those go that the same apps have and that are not among
// them. It refuses, before anything is changed, what the registry would refuse. Notifications that were
// silenced stay so unless the watch's NotifyURL is another.
func (r *Registry) Plan(ctx context.Context, watches []Watch, prune bool) (Plan, error) {
	wanted, apps := map[string]bool{}, map[string]bool{}
	for _, w := range watches {
		wanted[position{w.Repo.Key(), w.Key().field()}.String()] = true
		apps[w.App] = true
	}
	var plan Plan
	now := map[string]Watch{}
	var staying []Watch
	for q := (Query{Limit: mostPage}); ; {
		page, err := r.List(ctx, q)
		if err != nil {
			return Plan{}, err
		}
		for _, w := range page.Watches {
			at := position{w.Repo.Key(), w.Key().field()}.String()
			switch now[at] = w; {
			case wanted[at]:
			case prune && apps[w.App]:
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
		was, ok := now[position{w.Repo.Key(), w.Key().field()}.String()]
		if ok && was.NotifyURL == w.NotifyURL {
			w.Silenced = was.Silenced
		}
		is, err := w.document()
		if err != nil {
			return Plan{}, err
		}
		before, _ := was.document() // of none: an error, and ""
		switch {
		case !ok:
			plan.Add = append(plan.Add, w)
		case is != before:
			plan.Change = append(plan.Change, w)
		default:
			plan.Same++
		}
	}
	together := slices.Concat(staying, watches)
	return plan, compatible(together, func(i int) string { return together[i].App })
}

// Carry carries a plan out, as [Registry.Apply] does.
func (r *Registry) Carry(ctx context.Context, p Plan) error {
	remove := make([]Key, len(p.Remove))
	for i, w := range p.Remove {
		remove[i] = w.Key()
	}
	_, _, err := r.Apply(ctx, slices.Concat(p.Add, p.Change), remove)
	return err
}
