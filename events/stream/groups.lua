-- Groups: shared by the scripts that compare entries with the progress of consumer groups, which it precedes.

-- precedes reports whether entry ID a is lower than entry ID b.
local function precedes(a, b)
  local ams, aseq = string.match(a, '^(%d+)%-?(%d*)$')
  local bms, bseq = string.match(b, '^(%d+)%-?(%d*)$')
  if ams ~= bms then return tonumber(ams) < tonumber(bms) end
  return (tonumber(aseq) or 0) < (tonumber(bseq) or 0)
end

-- groups_of returns what XINFO GROUPS says about each group of a stream, as a table of fields.
local function groups_of(key)
  local groups = {}
  for n, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local group = {}
    for i = 1, #flat, 2 do group[flat[i]] = flat[i + 1] end
    groups[n] = group
  end
  return groups
end

