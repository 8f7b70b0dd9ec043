package controllers

import (
	"fmt"
	"slices"
	"strings"
)

// listed lists names for a message: sorted, and no more than a few.
func listed(names []string) string {
	const most = 5
	if len(names) == 0 {
		return "(none)"
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
