//! Which nodes go together.

use std::collections::HashMap;

use tacit_core::pass::{Nodes, Slot};

use crate::collectives::Behind;

use super::node::{Base, Computes, Node, keeps_order};
use super::view::{Domain, Role, View};

/// Nodes of one program, at most.
const MOST: usize = 96;

/// Columns of rows that are written side by side, at most: such rows are computed as wholes, and longer ones leave the first cache.
const LONGEST: usize = 1 << 10;

/// Groups of nodes over one domain each. Seen as one node each they are still a graph without cycles.
pub(super) struct Groups {
    /// The group of each node.
    group_of: Vec<Option<usize>>,
    list: Vec<Group>,
    /// Members of a group are of one level.
    levels: Vec<Level>,
    /// For the search: which units were seen in which one.
    visited: Vec<u32>,
    search: u32,
}

/// The number of a node by the nodes of MLX that take it, and the collectives behind it.
type Level = (i32, Behind);

struct Group {
    /// In topological order.
    members: Vec<usize>,
    domain: Domain,
    level: Level,
}

impl Groups {
    /// Puts each node that was read into a group with what it takes and with what takes the same, where that can be.
    pub(super) fn form(nodes: &Nodes, read: &[Option<Node>], behind: &[Behind]) -> Self {
        let mut groups = Self {
            group_of: vec![None; nodes.len()],
            list: Vec::new(),
            levels: levels(nodes, read).into_iter().zip(behind.iter().copied()).collect(),
            visited: vec![0; 2 * nodes.len()],
            search: 0,
        };
        let (joins, computed): (Vec<_>, Vec<_>) = read
            .iter()
            .enumerate()
            .filter_map(|(index, node)| Some((index, node.as_ref()?)))
            .partition(|(_, node)| node.computes == Computes::Join);
        for (index, node) in computed {
            groups.add(nodes, read, index, node);
        }
        groups.merge_siblings(nodes, read);
        for (index, node) in joins {
            groups.join(nodes, index, node);
        }
        groups
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn group_of(&self, node: usize) -> Option<usize> {
        self.group_of[node]
    }

    /// Whether a member of a group makes this.
    pub(super) fn makes(&self, nodes: &Nodes, group: usize, slot: Slot) -> bool {
        nodes.maker(slot).is_some_and(|maker| self.group_of[maker] == Some(group))
    }

    pub(super) fn members(&self, group: usize) -> &[usize] {
        &self.list[group].members
    }

    pub(super) fn domain(&self, group: usize) -> Domain {
        self.list[group].domain
    }

    /// Leaves the members of a group to MLX.
    pub(super) fn dissolve(&mut self, group: usize) {
        for member in std::mem::take(&mut self.list[group].members) {
            self.group_of[member] = None;
        }
    }

    /// A number for what is one node: a group, or a node that is in none.
    fn unit(&self, node: usize) -> usize {
        self.group_of[node].map_or(node, |group| self.group_of.len() + group)
    }

    fn add(&mut self, nodes: &Nodes, read: &[Option<Node>], index: usize, node: &Node) {
        let mut before = Vec::new();
        for maker in bases(nodes, node) {
            if let Some(group) = self.group_of[maker]
                && self.list[group].level == self.levels[index]
                && !before.contains(&group)
            {
                before.push(group);
            }
        }
        let joined = before.iter().find_map(|&group| {
            let domain = self.joint(nodes, read, node, group)?;
            (!self.needs(nodes, read, node, group)).then_some((group, domain))
        });
        let Some((group, domain)) = joined else {
            if let Some(domain) = alone(node) {
                self.group_of[index] = Some(self.list.len());
                self.list.push(Group { members: vec![index], domain, level: self.levels[index] });
            }
            return;
        };
        self.list[group].domain = domain;
        self.list[group].members.push(index);
        self.group_of[index] = Some(group);
        for other in before.into_iter().filter(|&other| other != group) {
            self.merge(nodes, read, group, other);
        }
    }

    /// The domain of a group with a node in it; none where they do not go together.
    fn joint(&self, nodes: &Nodes, read: &[Option<Node>], node: &Node, group: usize) -> Option<Domain> {
        let Group { members, domain, .. } = &self.list[group];
        if members.len() >= MOST {
            return None;
        }
        // A number of each row beside others of the group.
        if domain.role(node.size()) == Some(Role::Row) && !node.is_reduction() && node.domain.columns.is_none() {
            return self.fits(nodes, read, node, group, *domain).then_some(*domain);
        }
        let mut joint = domain.with(node.domain)?;
        for operand in &node.operands {
            if let Some(columns) = operand.view.columns() {
                joint = joint.with(Domain { columns: Some(columns), ..joint })?;
            }
        }
        self.fits(nodes, read, node, group, joint).then_some(joint)
    }

    /// Whether every operand can be had: from outside by a map, from a member as it is or spread over its row.
    fn fits(&self, nodes: &Nodes, read: &[Option<Node>], node: &Node, group: usize, domain: Domain) -> bool {
        let role = if node.is_reduction() { Some(Role::Each) } else { domain.role(node.size()) };
        let Some(role) = role else { return false };
        node.operands.iter().all(|operand| {
            let Some(map) = operand.view.map(role, domain) else { return false };
            let Base::Value(slot) = operand.base else { return true };
            let Some(member) = nodes.maker(slot).filter(|&maker| self.group_of[maker] == Some(group)) else {
                return true;
            };
            let Some(member_role) = read[member].as_ref().and_then(|node| domain.role(node.size())) else {
                return false;
            };
            match (member_role, role) {
                (Role::Each, Role::Each) | (Role::Row, Role::Row) => operand.view == View::Same,
                (Role::Row, Role::Each) => !map.is_wide() && map.divisor == 1 && map.modulus == domain.rows(),
                (Role::Each, Role::Row) => false,
            }
        })
    }

    /// Puts groups together that take the same, as those of the two halves of a rotary embedding do.
    fn merge_siblings(&mut self, nodes: &Nodes, read: &[Option<Node>]) {
        let mut known = HashMap::new();
        for group in 0..self.list.len() {
            let members = self.list[group].members.iter().filter_map(|&member| read[member].as_ref());
            // Rows that are reduced are computed as wholes: of two programs of long ones, each may fit the memory of a thread alone.
            if members.clone().any(|node| node.domain.columns.is_some()) {
                continue;
            }
            let mut taken: Vec<_> = members
                .flat_map(|node| &node.operands)
                .filter(|operand| match &operand.base {
                    Base::Value(slot) => !self.makes(nodes, group, *slot),
                    Base::Constant(array) => array.size() > 1,
                })
                .map(|operand| operand.base.key())
                .collect();
            taken.sort_unstable();
            taken.dedup();
            let Group { domain, level, .. } = self.list[group];
            let first = known.entry((level, domain.elements, taken)).or_insert(group);
            if *first != group && !self.merge(nodes, read, *first, group) {
                *first = group;
            }
        }
    }

    /// Puts a node that only writes values side by side to the group that makes all of them.
    fn join(&mut self, nodes: &Nodes, index: usize, node: &Node) {
        let mut makers = bases(nodes, node).map(|maker| self.group_of[maker]);
        let Some(Some(group)) = makers.next() else { return };
        if makers.filter(|&maker| maker == Some(group)).count() + 1 != node.operands.len() {
            return;
        }
        let Group { members, domain, .. } = &mut self.list[group];
        let Some(joint) = domain.with(node.domain) else { return };
        if members.len() < MOST && joint.columns.is_some_and(|columns| columns <= LONGEST) {
            *domain = joint;
            members.push(index);
            members.sort_unstable();
            self.group_of[index] = Some(group);
        }
    }

    /// Puts two groups together if neither needs the other by way of a third node, and says whether it did.
    fn merge(&mut self, nodes: &Nodes, read: &[Option<Node>], group: usize, other: usize) -> bool {
        let Some(domain) = self.list[group].domain.with(self.list[other].domain) else { return false };
        if self.list[group].members.len() + self.list[other].members.len() > MOST
            || self.leads(nodes, read, group, other)
            || self.leads(nodes, read, other, group)
        {
            return false;
        }
        let taken = std::mem::take(&mut self.list[other].members);
        let before = (self.list[group].members.clone(), self.list[group].domain);
        for &member in &taken {
            self.group_of[member] = Some(group);
        }
        self.list[group].members.extend(&taken);
        self.list[group].members.sort_unstable();
        self.list[group].domain = domain;
        // What one took from the other as an input is now a member's.
        let fit = self.list[group]
            .members
            .iter()
            .all(|&member| read[member].as_ref().is_some_and(|node| self.fits(nodes, read, node, group, domain)));
        if !fit {
            (self.list[group].members, self.list[group].domain) = before;
            for &member in &taken {
                self.group_of[member] = Some(other);
            }
            self.list[other].members = taken;
        }
        fit
    }

    /// Whether a node needs a group by way of a node that is not in it.
    fn needs(&mut self, nodes: &Nodes, read: &[Option<Node>], node: &Node, group: usize) -> bool {
        let start = bases(nodes, node).filter(|&maker| self.group_of[maker] != Some(group)).collect();
        self.reaches(nodes, read, start, group)
    }

    /// Whether a group needs another by way of a node that is in neither.
    fn leads(&mut self, nodes: &Nodes, read: &[Option<Node>], from: usize, to: usize) -> bool {
        let mut start = Vec::new();
        for &member in &self.list[from].members {
            if let Some(node) = &read[member] {
                start.extend(
                    bases(nodes, node)
                        .filter(|&maker| self.group_of[maker] != Some(to) && self.group_of[maker] != Some(from)),
                );
            }
        }
        self.reaches(nodes, read, start, to)
    }

    /// Whether one of some nodes is in a group or needs it. Only nodes of the group's level can, and only those that come
    /// after its first one: a node comes after what it takes.
    fn reaches(&mut self, nodes: &Nodes, read: &[Option<Node>], mut stack: Vec<usize>, group: usize) -> bool {
        let level = self.list[group].level;
        let first = self.list[group].members.first().copied().unwrap_or_default();
        self.search += 1;
        while let Some(node) = stack.pop() {
            if self.group_of[node] == Some(group) {
                return true;
            }
            let unit = self.unit(node);
            if self.levels[node] != level || std::mem::replace(&mut self.visited[unit], self.search) == self.search {
                continue;
            }
            match self.group_of[node] {
                None if node > first => {
                    stack.extend(nodes.operands(node).flatten().filter_map(|slot| nodes.maker(slot)));
                }
                None => {}
                Some(other) => {
                    let later = self.list[other].members.iter().rev().take_while(|&&member| member > first);
                    for member in later.filter_map(|&member| read[member].as_ref()) {
                        stack.extend(bases(nodes, member));
                    }
                }
            }
        }
        false
    }
}

/// A number for each node that no node's operand exceeds: one less than that of the first node that takes its result, if it is
/// one that no program stands for, and else the same. What lies between two nodes of one level is of that level too.
fn levels(nodes: &Nodes, read: &[Option<Node>]) -> Vec<i32> {
    let mut levels = vec![0; nodes.len()];
    for node in (0..nodes.len()).rev() {
        for maker in nodes.operands(node).flatten().filter_map(|slot| nodes.maker(slot)) {
            let computed = read[maker].as_ref().is_some_and(|node| node.computes != Computes::Join);
            let light = computed || keeps_order(nodes.name(maker)) || nodes.name(maker) == "Broadcast";
            levels[maker] = levels[maker].min(levels[node] - i32::from(!light));
        }
    }
    levels
}

/// The domain of a node by itself; none where an operand has no map.
fn alone(node: &Node) -> Option<Domain> {
    let mut domain = node.domain;
    for operand in &node.operands {
        if let Some(columns) = operand.view.columns() {
            domain = domain.with(Domain { columns: Some(columns), ..domain })?;
        }
    }
    let mapped = node.operands.iter().all(|operand| operand.view.map(Role::Each, domain).is_some());
    mapped.then_some(domain)
}

/// The nodes that make what a node takes, behind views.
fn bases<'a>(nodes: &'a Nodes, node: &'a Node) -> impl Iterator<Item = usize> + 'a {
    node.operands.iter().filter_map(|operand| match operand.base {
        Base::Value(slot) => nodes.maker(slot),
        Base::Constant(_) => None,
    })
}
